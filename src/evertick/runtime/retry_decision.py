"""What follows an attempt, by its job's stored policy: for workers, the reaper and reports of pull workers."""

import functools
import logging
from datetime import datetime, timedelta

import msgspec

from evertick.domain.errors import InvalidInput
from evertick.domain.ids import RunKey
from evertick.domain.policies import Backoff
from evertick.domain.retry import Ended, NextStep, RetryPolicy, decide
from evertick.domain.schedule.instants import to_us

logger = logging.getLogger("evertick")


def next_step(retry: str, job_id: int, fire_at: datetime, ended: Ended) -> NextStep:
    """What follows in a run whose job has this policy, given as JSON."""
    return decide(_policy(retry), RunKey(job_id, to_us(fire_at)), ended)


def is_last_try(retry: str, attempt: int) -> bool:
    """Whether the run of a job with this policy ends in a dead letter if this attempt fails or is lost."""
    return _policy(retry).is_last_try(attempt)


@functools.lru_cache(maxsize=1024)
def _policy(text: str) -> RetryPolicy:
    """The policy in a text. If it cannot be read, the defaults apply: its attempts must come to an end."""
    try:
        stored = msgspec.json.decode(text)
        return RetryPolicy(
            stored["max_retries"],
            Backoff(stored["backoff"]),
            timedelta(seconds=stored["delay_seconds"]),
            timedelta(seconds=stored["max_delay_seconds"]),
        )
    except (msgspec.DecodeError, InvalidInput, LookupError, TypeError, ValueError, OverflowError) as error:
        logger.error("the retry policy %.200s cannot be read, so the defaults apply: %r", text, error)  # noqa: TRY400 - the row is at fault
        return RetryPolicy()
