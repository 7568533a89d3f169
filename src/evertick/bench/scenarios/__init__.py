"""The scenarios of the bench."""
