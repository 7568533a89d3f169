"""Limits that the fields of requests have, and the code that obeys them.

Apart from that code, which takes long to import: the command line reads answers without it.
"""

RRULE_MAX_CHARACTERS = 8192
PREVIEW_MAX_ROWS = 1000
DEFAULT_MAX_MISSED = 100
MAX_MISSED = 10_000
SMEAR_JITTERS_S = (60, 120, 300, 600, 900, 1800, 3600)
NEVER_LABEL, NEVER_VALUE = "smear", "never"
"""The label of jobs that the smear advisor leaves alone."""
