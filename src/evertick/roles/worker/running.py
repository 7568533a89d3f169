"""One attempt whose handler is called, and how it ends."""

import asyncio
import math
from datetime import datetime
from enum import Enum, auto
from typing import Any, assert_never

from evertick.roles.worker import endings
from evertick.store.lanes import Leased
from evertick.store.outcomes import Ending, Token


class Stop(Enum):
    """Why we end an attempt before its handler does."""

    TIMED_OUT = auto()  # its deadline passed
    LOST = auto()  # it is not ours any more: there is nothing to record
    HANDED_BACK = auto()  # the worker stops


class Running:
    """`started` and `stopped` are by the monotonic clock, `started_at` is by the database's.

    `started` is set right before the call, by the thread that makes it; until then it is infinite.
    """

    __slots__ = ("is_over", "leased", "started", "started_at", "stop", "stopped", "task")

    def __init__(self, leased: Leased, started_at: datetime) -> None:
        self.leased = leased
        self.started = math.inf
        self.started_at = started_at
        self.task: asyncio.Task[None] | None = None
        self.stop: Stop | None = None
        self.stopped = 0.0
        self.is_over = False

    @property
    def token(self) -> Token:
        return self.leased.lane_id, self.leased.seq


def ending_of(running: Running, now_at: datetime, value: Any, error: BaseException | None) -> Ending | None:
    """How it ended. Once we have stopped it, that decides, whatever its handler made of it."""
    match running.stop:
        case None if error is not None:
            return endings.failed(running.leased, running.started_at, now_at, error)
        case None:
            return endings.succeeded(running.leased, running.started_at, now_at, value)
        case Stop.TIMED_OUT:
            return endings.timed_out(running.leased, running.started_at, now_at)
        case Stop.HANDED_BACK:
            return endings.handed_back(running.leased, running.started_at, now_at)
        case Stop.LOST:
            return None
        case _:
            assert_never(running.stop)
