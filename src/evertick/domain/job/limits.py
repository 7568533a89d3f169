"""How much a job may ask for, field by field."""

ZONE_NAME_MAX_LENGTH = 255
MAX_RETRIES = 1000
MAX_CONCURRENT = 10_000
SHORTEST_TIMEOUT_S = 1
LONGEST_TIMEOUT_S = 86_400
LONGEST_WAIT_S = 366 * 86_400
"""A year, for every delay, grace and jitter: beyond it an instant could leave the calendar."""

LONGEST_RETENTION_S = 10 * LONGEST_WAIT_S
