"""Worlds and their corruptions: what the checkers themselves are tested with."""
