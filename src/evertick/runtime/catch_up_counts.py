"""What the schedulers of this process have caught up on, for its metrics."""

from dataclasses import dataclass


@dataclass(slots=True)
class CatchUpCounts:
    """`fired`: timers that an outage left."""

    fired: int = 0


catch_ups = CatchUpCounts()
