"""A schedule in one English sentence."""
