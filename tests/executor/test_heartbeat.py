"""What the heartbeat does if the other side does not answer."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, cast

from engine import PATIENCE_SECONDS
from evertick.executor.heartbeat import HeartbeatThread
from evertick.executor.held_leases import HeldLease, HeldLeases
from evertick.runtime.loop import Loop


class HangsOnce:
    """A source that never answers the first heartbeat, and all later ones at once."""

    heartbeat_seconds = 0.05
    heartbeat_timeout_seconds = 0.1

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.is_extended = threading.Event()

    def loop(self, name: str, step: Callable[[], Awaitable[float]], longest_pause: Callable[[], float]) -> Loop:
        return Loop(name, step, longest_pause=longest_pause)

    async def extend(self, leases: Sequence[HeldLease]) -> set[int]:
        self.calls.append("extend")
        if len(self.calls) == 1:
            await asyncio.Event().wait()
        self.is_extended.set()
        return {lease.lease_id for lease in leases}

    async def hang_up(self) -> None:
        self.calls.append("hang up")


async def test_a_heartbeat_without_an_answer_ends_after_its_time_out_and_the_next_one_extends_the_leases() -> None:
    source, held_leases = HangsOnce(), HeldLeases(30.0)
    held_leases.hold([1], asked=0.0)
    heartbeat = HeartbeatThread(cast("Any", source), held_leases)
    heartbeat.start()
    was_extended = await asyncio.to_thread(source.is_extended.wait, PATIENCE_SECONDS)
    await heartbeat.stop()
    assert was_extended
    # Nothing is asked on a connection whose last answer may still come.
    assert source.calls[:3] == ["extend", "hang up", "extend"]
    (lease,) = held_leases.snapshot()
    assert lease.expires > 30.0
