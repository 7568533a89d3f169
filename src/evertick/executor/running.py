"""One attempt whose handler is called, and how it ends."""

import asyncio
import math
from datetime import datetime
from enum import Enum, auto
from typing import Any, assert_never

from evertick.domain.attempt import SUCCEEDED, Attempt, AttemptOutcome, Deferred, Failed
from evertick.domain.states import Outcome
from evertick.executor.handlers.registry import Handler
from evertick.executor.handlers.results import failed

STOPPED = "its worker stopped"


class Stop(Enum):
    """Why the executor ends an attempt before its handler does."""

    TIMED_OUT = auto()  # its deadline passed
    LOST = auto()  # it is not ours any more: there is nothing to record
    HANDED_BACK = auto()  # the worker stops


class Running:
    """`started` and `stopped` are by the monotonic clock, `started_at` is by the database's.

    `started` is set right before the call, by the thread that makes it; until then it is infinite.
    """

    __slots__ = ("attempt", "handler", "is_over", "started", "started_at", "stop", "stopped", "task")

    def __init__(self, attempt: Attempt, handler: Handler, started_at: datetime) -> None:
        self.attempt = attempt
        self.handler = handler
        self.started = math.inf
        self.started_at = started_at
        self.task: asyncio.Task[None] | None = None
        self.stop: Stop | None = None
        self.stopped = 0.0
        self.is_over = False

    def outcome(self, value: Any, error: BaseException | None) -> AttemptOutcome | None:
        """How it ended. Once it was stopped, that decides, whatever its handler made of it."""
        match self.stop:
            case None if error is not None:
                return failed(error)
            case None:
                return SUCCEEDED if value is None else self.handler.outcome_of(value)
            case Stop.TIMED_OUT:
                seconds = self.attempt.timeout_seconds
                return Failed(f"not finished after {seconds} s, the job's timeout", Outcome.TIMED_OUT)
            case Stop.HANDED_BACK:
                return Deferred(STOPPED)
            case Stop.LOST:
                return None
            case _:
                assert_never(self.stop)
