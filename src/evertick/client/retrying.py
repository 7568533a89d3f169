"""Whether to ask again, and when: a decision about values."""

import random

from evertick.client.errors import ApiError, Conflict, TooManyRequests, Unreachable
from evertick.client.request import Request

RETRIES = 4
FIRST_PAUSE = 0.2
LONGEST_PAUSE = 30.0
"""Who asks for a longer one is not waited for: the caller may have better things to do."""

_TEMPORARY = frozenset({502, 503, 504})
_IN_FLIGHT = "urn:evertick:problem:in-flight"


def pause_before_retry(request: Request[object], failure: ApiError, tries: int, retries: int) -> float | None:
    """How many seconds to wait after so many tries; None: it is no use, or might do something twice."""
    if tries > retries or not _may_repeat(request, failure):
        return None
    asked = failure.retry_after or 0.0
    if asked > LONGEST_PAUSE:
        return None
    pause = min(FIRST_PAUSE * 2.0 ** (tries - 1), LONGEST_PAUSE)
    # Spread, so that all who failed together do not come back together.
    return asked + pause * random.uniform(0.5, 1.0)  # noqa: S311 - nobody gains from guessing it


def _may_repeat(request: Request[object], failure: ApiError) -> bool:
    match failure:
        case TooManyRequests():
            return True  # turned away before anything was done
        case Unreachable():
            return request.is_repeatable or failure.never_arrived
        case Conflict():
            return failure.type == _IN_FLIGHT
        case _:
            return request.is_repeatable and failure.status in _TEMPORARY
