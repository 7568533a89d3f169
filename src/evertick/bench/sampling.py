"""What waits and how much memory is used over time, read each second while something else goes on."""

import asyncio
import math
import time
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from evertick.bench import queries
from evertick.bench.queries import Backlog
from evertick.bench.testbed import Testbed

INTERVAL_SECONDS = 1.0
SHOWN = 20
"""A result shows so many samples at most, at equal distances, and the last one."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Sample:
    """`seconds` count from the first sample. `memory_mb` is by kind of process."""

    seconds: float
    backlog: Backlog
    memory_mb: dict[str, float]

    @property
    def fields(self) -> dict[str, Any]:
        backlog = {name: round(value, 3) for name, value in self.backlog._asdict().items()}
        return {"seconds": round(self.seconds, 1), **backlog, "memory_mb": self.memory_mb}


@dataclass(slots=True)
class Sampler:
    """Collects samples."""

    testbed: Testbed
    samples: list[Sample] = field(default_factory=list)
    _began: float = field(default_factory=time.monotonic)

    async def during(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of work. Samples are taken until it ends, the last one then."""
        working = asyncio.create_task(work)
        try:
            while not working.done():
                await self.take()
                await asyncio.wait({working}, timeout=INTERVAL_SECONDS)
            await self.take()
            return await working
        finally:
            working.cancel()
            await asyncio.gather(working, return_exceptions=True)

    async def take(self) -> None:
        backlog = await queries.backlog(self.testbed.pool)
        self.samples.append(Sample(time.monotonic() - self._began, backlog, self.testbed.fleet.memory_mb()))


def series_fields(samples: Sequence[Sample]) -> list[dict[str, Any]]:
    """Some samples at equal distances, with the last one."""
    step = math.ceil(len(samples) / SHOWN)
    shown = [*samples[:-1:step], *samples[-1:]]
    return [sample.fields for sample in shown]


def memory_fields(samples: Sequence[Sample]) -> dict[str, Any]:
    """The memory of each kind of process at the start, in the middle, at the end, and at most."""
    moments = {"start": samples[0], "middle": samples[len(samples) // 2], "end": samples[-1]}
    return {
        kind: {
            **{moment: sample.memory_mb.get(kind) for moment, sample in moments.items()},
            "max": max(sample.memory_mb.get(kind, 0.0) for sample in samples),
        }
        for kind in samples[0].memory_mb
    }
