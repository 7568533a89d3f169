"""All attacks, by name: each bounded in count and time, from a process of its own."""

from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any

from evertick.api.routes.batch import FAULT_BYTES_PER_BYTE, FAULT_BYTES_PER_LINE
from hostile.attacks import bodies, connections, holding, schedules, storage
from hostile.attacks.context import HANGING, AttackContext
from hostile.evaluation import MEMORY_MB

FIRST_FAULT_BYTES = 768
"""Of a verdict with its first fault, which may list all fields of a job. The others have the room that is stated."""


@dataclass(frozen=True, slots=True)
class Attack:
    """What is done, for how long, and by how many tenants."""

    work: Callable[[AttackContext], Coroutine[Any, Any, None]]
    seconds: float = 4.0
    heavy_seconds: float = 20.0
    tenants: int = 1
    memory_mb: float = MEMORY_MB
    fault: Callable[[Mapping[str, float]], str | None] = lambda _: None
    """What is wrong with what the attacker counted."""
    effects: Mapping[str, int] = field(default_factory=dict)
    """What must come of it at least, or it was no attack: refused at the door for its form, say."""

    @property
    def name(self) -> str:
        return self.work.__name__

    def missing_effects(self, counts: Mapping[str, float]) -> list[str]:
        """What did not come of it."""
        return [
            f"no attack: {name} {counts.get(name, 0):g}, not {least}"
            for name, least in self.effects.items()
            if counts.get(name, 0) < least
        ]


def _stayed_open(counts: Mapping[str, float]) -> str | None:
    left = counts.get("answers 401", 0) - counts.get("closed by the server", 0)
    return f"{left:.0f} refused connections were kept open by dripping" if left else None


def _amplified(counts: Mapping[str, float]) -> str | None:
    """The verdicts on a batch are as long as the product says, at most."""
    per_line = FAULT_BYTES_PER_LINE + FIRST_FAULT_BYTES
    allowed = (FAULT_BYTES_PER_BYTE * counts.get("sent KB", 0)) + per_line * counts.get("lines", 0) / 1024
    largest = counts.get("largest answer KB", 0)
    return f"the answer has {largest:.0f} KB, over {allowed:.0f} KB" if largest > allowed else None


_ALL = (
    Attack(schedules.yearly_gaps, 7, effects={"answers 201": 10}),
    Attack(schedules.rare_recurrences, 7, heavy_seconds=30, effects={"answers 201": 10}),
    Attack(schedules.gap_crons, effects={"searched in vain": 4, "lines searched in vain": 4}),
    Attack(schedules.abandoned_previews, effects={"hung up on": 20}),
    Attack(bodies.worthless_lines, effects={"answers 422": 2}),
    Attack(bodies.worthless_arrays, effects={"answers 400": 1, "answers 413": 1, "answers 422": 1}),
    Attack(bodies.slow_bodies, 5, effects={"bodies held": 1}),
    Attack(bodies.amplified_faults, fault=_amplified, effects={"answers 200": 1}),
    Attack(bodies.hollow_payloads, effects={"answers 422": 4}),
    Attack(connections.header_flood, effects={"answers 431": 1}),
    Attack(connections.long_url, effects={"answers 414": 1}),
    Attack(connections.drip_after_refusal, 8, heavy_seconds=30, fault=_stayed_open, effects={"answers 401": 50}),
    Attack(connections.idle_connections, heavy_seconds=30, effects={"connected": 500}),
    Attack(connections.slow_heads, effects={"heads held": 100}),
    Attack(connections.pipelining, effects={"requests": 1000}),
    Attack(connections.metrics_flood, effects={"answers 200": 50}),
    Attack(connections.unknown_keys, effects={"answers 401": 100}),
    Attack(holding.hanging_targets, 6, tenants=2, effects={"calls held": 50}),
    Attack(holding.hanging_at_the_victims_host, effects={HANGING: 8}),
    Attack(holding.long_polls, 6, effects={"polls held": 200}),
    Attack(holding.label_searches, heavy_seconds=90, effects={"batches 200": 1, "answers 200": 8}),
    Attack(holding.slow_lists, heavy_seconds=30, effects={"answers 200": 10}),
    Attack(holding.large_answers, heavy_seconds=30, effects={"answers 200": 3}),
    Attack(storage.kept_answers, effects={"answers 200": 20, "answers 429": 1}),
    Attack(storage.versions, effects={"answers 200": 20, "answers 429": 1}),
    Attack(storage.queues_and_rules, effects={"answers 201": 10}),
    Attack(storage.api_keys, effects={"answers 201": 10}),
)
ATTACKS = {attack.name: attack for attack in _ALL}
