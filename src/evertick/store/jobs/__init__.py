"""Jobs with what they refer to, and their runs."""
