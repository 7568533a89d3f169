"""What the parts of one scheduler share: its name, its connections, its clock, what it holds and what it has loaded."""

import asyncio
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from evertick.domain.assignment import Member
from evertick.domain.catch_up import OUTAGE
from evertick.domain.errors import ScheduleTooCostly
from evertick.domain.fuse import FrequentJobs
from evertick.domain.ids import PARTITIONS, partition_of
from evertick.domain.rule import Rule, from_canonical
from evertick.domain.schedule.budget import at_most
from evertick.domain.schedule.instants import duration_us, from_us, to_us
from evertick.roles.scheduler.pending_timers import PendingTimers
from evertick.roles.scheduler.planning import LOOP_STEPS
from evertick.runtime.clock import Clock
from evertick.runtime.loop import Slices
from evertick.store.database import Pool
from evertick.store.engine.timers import Timer
from evertick.store.jobs import references
from evertick.store.statements import Connection
from evertick.store.tenants import tenants

MAX_RULES = 200_000
"""Rules kept at once. Of more, those that were not used for longest are dropped, and read again when needed."""

_NEVER_AT = from_us(0)


@dataclass(slots=True)
class Ownership:
    """The partitions that this node held at its last look, with their epochs; `last_seq` is the largest seq it wrote.

    Each statement that writes checks the epochs against the `partitions` table.

    `writing` is held while a firing is under way. Seqs must reach each lane in their order, so there is one at a time,
    and partitions are given up only in between. `in_doubt`: a firing was sent and its end is unknown. It may still be
    under way in the server, so nothing is fired until new epochs have fenced it off.
    """

    epochs: dict[int, int] = field(default_factory=dict)
    outage_us: list[int] = field(default_factory=lambda: [0] * PARTITIONS)
    """For each partition: what was due before is left from an outage."""
    last_seq: int = 0
    in_doubt: bool = False
    writing: asyncio.Lock = field(default_factory=asyncio.Lock)
    _last_outage_at: datetime = _NEVER_AT

    def gain(self, epochs: dict[int, int], last_seq: int, outages: Mapping[int, datetime], now_us: int) -> None:
        """Partitions were taken; some have something left from an outage."""
        for partition in epochs:
            self.outage_us[partition] = to_us(outages[partition]) if partition in outages else 0
        self.limit_outages(now_us)
        self.epochs |= epochs
        self.last_seq = max(self.last_seq, last_seq)

    def limit_outages(self, now_us: int) -> None:
        """What is due from now on is not left from an outage, though the clock may have been ahead at that time."""
        most_us = now_us - duration_us(OUTAGE)
        self.outage_us[:] = [min(outage_us, most_us) for outage_us in self.outage_us]
        self._last_outage_at = from_us(max(self.outage_us))

    def is_left(self, timer: Timer) -> bool:
        """Whether a timer is left from an outage."""
        return self._is_before(timer.job_id, timer.due_at)

    def follows(self, timer: Timer) -> bool:
        """Whether a timer is for a run of a tick of the outage."""
        return self._is_before(timer.job_id, timer.fire_at)

    def _is_before(self, job_id: int, at: datetime) -> bool:
        if at >= self._last_outage_at:  # as nearly all are
            return False
        return to_us(at) < self.outage_us[partition_of(job_id)]

    def drop(self, partitions: set[int]) -> None:
        for partition in partitions:
            self.epochs.pop(partition, None)


class RuleCache:
    """Rules by id, and the weights of tenants, so that firing reads none of them again.

    `unreadable` says why a text could not be read as a rule.

    `costly` are those whose last plan took more than LOOP_STEPS.

    The id comes from the rule's text, so that what is cached stays right even when the database loses commits. That a
    rule is missing is not cached: it may be added.
    """

    def __init__(self) -> None:
        self.known: OrderedDict[int, Rule] = OrderedDict()  # last used last
        self.costly: set[int] = set()
        self.unreadable: OrderedDict[int, str] = OrderedDict()
        self.weights: dict[int, int] = {}

    async def load(self, connection: Connection, rule_ids: Iterable[int]) -> None:
        """Read those of these rules that are not cached and exist."""
        wanted = set(rule_ids)
        # Repeatedly: while these were read, another loop may have dropped some of them.
        while missing := wanted - self.known.keys() - self.unreadable.keys():
            texts = await references.rules(connection, missing)
            wanted -= missing - texts.keys()
            await self._read(texts)
        for rule_id in wanted:
            if rule_id in self.known:
                self.known.move_to_end(rule_id)
        self._drop_unused(max(MAX_RULES, len(wanted)))

    def _drop_unused(self, most: int) -> None:
        while len(self.known) > most:
            rule_id, _ = self.known.popitem(last=False)
            self.costly.discard(rule_id)
        while len(self.unreadable) > most:
            self.unreadable.popitem(last=False)

    def is_missing(self, rule_id: int) -> bool:
        """Whether a rule that was loaded did not exist."""
        return rule_id not in self.known and rule_id not in self.unreadable

    def note_steps(self, rule_id: int, steps: int) -> None:
        """Note how many steps the last plan of a rule took."""
        if steps <= LOOP_STEPS:
            self.costly.discard(rule_id)
        elif rule_id in self.known:
            self.costly.add(rule_id)

    async def _read(self, texts: Mapping[int, str]) -> None:
        slices = Slices()
        for rule_id, text in texts.items():
            if slices.is_over:
                await slices.pause()
            try:
                self.known[rule_id] = from_canonical(text)
                with at_most(LOOP_STEPS):
                    self.known[rule_id].ticks()
            except (OSError, MemoryError):
                raise  # a fault of the machine, not of the rule
            except ScheduleTooCostly:
                self.costly.add(rule_id)
            except Exception as error:  # noqa: BLE001 - a corrupt row must not stop its neighbours
                self.known.pop(rule_id, None)
                self.unreadable[rule_id] = f"rule {rule_id} cannot be read: {type(error).__name__}: {error}"

    async def load_weights(self, connection: Connection, tenant_ids: Iterable[int]) -> None:
        """Read the weights of tenants; those of tenants seen before may have changed."""
        self.weights |= await tenants.weights(connection, tenant_ids)


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
    fired_jobs: FrequentJobs = field(default_factory=FrequentJobs)

    @property
    def node(self) -> str:
        return self.me.node
