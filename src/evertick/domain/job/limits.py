"""How much a job may ask for, field by field."""

from evertick.domain.deadline import TIMEOUT_MAX, TIMEOUT_MIN

ZONE_NAME_MAX_LENGTH = 255
MOST_RETRIES = 1000
MOST_CONCURRENT = 10_000
SHORTEST_TIMEOUT_S = int(TIMEOUT_MIN.total_seconds())
LONGEST_TIMEOUT_S = int(TIMEOUT_MAX.total_seconds())
LONGEST_WAIT_S = 366 * 86_400
"""A year, for every delay, grace and jitter: beyond it an instant could leave the calendar."""

LONGEST_RETENTION_S = 10 * LONGEST_WAIT_S
