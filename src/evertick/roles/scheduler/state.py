"""What the parts of one scheduler share: its name, its connections, its clock, what it holds and what it has loaded."""

import asyncio
from dataclasses import dataclass, field

from evertick.domain.assignment import Member
from evertick.roles.scheduler.pending_timers import PendingTimers
from evertick.roles.scheduler.rule_cache import RuleCache
from evertick.runtime.clock import Clock
from evertick.store.database import Pool


@dataclass(slots=True)
class Ownership:
    """The partitions that this node believes to hold, with their epochs; `last_seq` is the largest seq that it wrote.

    Each statement that writes checks the epochs against the `partitions` table.

    `writing` is held while a firing is under way. Seqs must reach each lane in their order, so there is one at a time,
    and partitions are given up only in between. `in_doubt`: a firing was sent and its end is unknown. It may still be
    under way in the server, so nothing is fired until new epochs have fenced it off.
    """

    epochs: dict[int, int] = field(default_factory=dict)
    last_seq: int = 0
    in_doubt: bool = False
    writing: asyncio.Lock = field(default_factory=asyncio.Lock)

    def gain(self, epochs: dict[int, int], last_seq: int) -> None:
        self.epochs |= epochs
        self.last_seq = max(self.last_seq, last_seq)

    def drop(self, partitions: set[int]) -> None:
        for partition in partitions:
            self.epochs.pop(partition, None)


@dataclass(slots=True)
class State:
    """Changed by several loops, always between two awaits.

    Firing and the heartbeat (`reserved`) have connections of their own, with time-outs of their own.
    """

    me: Member
    clock: Clock
    pool: Pool
    firing: Pool
    reserved: Pool
    pending: PendingTimers
    ownership: Ownership = field(default_factory=Ownership)
    rule_cache: RuleCache = field(default_factory=RuleCache)

    @property
    def node(self) -> str:
        return self.me.node
