"""All attacks, by name: each bounded in count and time, from a process of its own."""

from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any

from evertick.api.routes.batch import FAULT_BYTES_PER_BYTE, FAULT_BYTES_PER_LINE
from hostile.attacks import bodies, connections, holding, schedules, storage
from hostile.attacks.scene import Scene
from hostile.verdicts import MEMORY_MB

FIRST_FAULT_BYTES = 512
"""Of a verdict with its first fault, which may list all fields of a job. The others have the room that is stated."""


@dataclass(frozen=True, slots=True)
class Attack:
    """What is done, for how long, and by how many tenants."""

    work: Callable[[Scene], Coroutine[Any, Any, None]]
    seconds: float = 4.0
    heavy_seconds: float = 20.0
    tenants: int = 1
    memory_mb: float = MEMORY_MB
    fault: Callable[[Mapping[str, float]], str | None] = lambda _: None
    """What is wrong with what the attacker counted."""

    @property
    def name(self) -> str:
        return self.work.__name__


def _stayed_open(seen: Mapping[str, float]) -> str | None:
    left = seen.get("answers 401", 0) - seen.get("closed by the server", 0)
    return f"{left:.0f} refused connections were kept open by dripping" if left else None


def _amplified(seen: Mapping[str, float]) -> str | None:
    """The verdicts on a batch are as long as the product says, at most."""
    per_line = FAULT_BYTES_PER_LINE + FIRST_FAULT_BYTES
    allowed = (FAULT_BYTES_PER_BYTE * seen.get("sent KB", 0)) + per_line * seen.get("lines", 0) / 1024
    largest = seen.get("largest answer KB", 0)
    return f"the answer has {largest:.0f} KB, over {allowed:.0f} KB" if largest > allowed else None


_ALL = (
    Attack(schedules.yearly_gaps, 7),
    Attack(schedules.rare_recurrences, 7, heavy_seconds=30),
    Attack(schedules.gap_crons),
    Attack(schedules.abandoned_previews),
    Attack(bodies.worthless_lines),
    Attack(bodies.worthless_arrays),
    Attack(bodies.slow_bodies, 5),
    Attack(bodies.amplified_faults, fault=_amplified),
    Attack(bodies.hollow_payloads),
    Attack(connections.header_flood),
    Attack(connections.long_url),
    Attack(connections.drip_after_refusal, 8, heavy_seconds=30, fault=_stayed_open),
    Attack(connections.idle_connections, heavy_seconds=30),
    Attack(connections.slow_heads),
    Attack(connections.pipelining),
    Attack(connections.metrics_flood),
    Attack(connections.unknown_keys),
    Attack(holding.hanging_targets, 6, tenants=2),
    Attack(holding.hanging_at_the_victims_host),
    Attack(holding.long_polls, 6),
    Attack(holding.label_searches, heavy_seconds=90),
    Attack(holding.slow_lists, heavy_seconds=30),
    Attack(holding.large_answers, heavy_seconds=30),
    Attack(storage.kept_answers),
    Attack(storage.versions),
    Attack(storage.queues_and_rules),
    Attack(storage.api_keys),
)
ATTACKS = {attack.name: attack for attack in _ALL}
