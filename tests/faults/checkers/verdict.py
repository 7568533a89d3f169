"""What a checker says: its faults, each one sentence, and figures that are reported but judged by the test."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from evertick.domain.ids import RunKey

MAX_SHOWN = 20
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Verdict:
    name: str
    faults: tuple[str, ...]
    figures: dict[str, int]

    @property
    def ok(self) -> bool:
        return not self.faults

    def __str__(self) -> str:
        judged = "ok" if self.ok else f"{len(self.faults)} faults"
        figures = ", ".join(f"{name} {number}" for name, number in self.figures.items())
        lines = [f"{self.name}: {judged} ({figures})", *(f"  {fault}" for fault in self.faults[:MAX_SHOWN])]
        hidden = len(self.faults) - MAX_SHOWN
        return "\n".join([*lines, f"  and {hidden} more"] if hidden > 0 else lines)


def at(us: int) -> str:
    return (_EPOCH + timedelta(microseconds=us)).isoformat().replace("+00:00", "Z")


def run_text(key: RunKey) -> str:
    return f"job {key.job_id}, run of {at(key.fire_at_us)}"


def tick_text(job_id: int, tick_us: int) -> str:
    return f"job {job_id}, tick of {at(tick_us)}"
