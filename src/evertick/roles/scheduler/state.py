"""What the parts of one scheduler share: who it is, its connections, its clock, and what it knows."""

from dataclasses import dataclass, field

from evertick.domain.assignment import Member
from evertick.roles.scheduler.agenda import Agenda
from evertick.roles.scheduler.holdings import Holdings
from evertick.roles.scheduler.rulebook import Rulebook
from evertick.runtime.clock import Clock
from evertick.store.database import Pool


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
    agenda: Agenda
    holdings: Holdings = field(default_factory=Holdings)
    rulebook: Rulebook = field(default_factory=Rulebook)

    @property
    def node(self) -> str:
        return self.me.node
