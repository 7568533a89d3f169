"""Patterns of wall times: days of a year and times of a day, before any zone is involved."""
