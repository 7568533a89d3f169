"""Caches the rules and the weights of tenants that a scheduler has read, so that firing reads none of them again."""

import logging
from collections.abc import Iterable, Mapping

from evertick.domain.errors import ScheduleTooCostly
from evertick.domain.rule import Rule, from_canonical
from evertick.domain.schedule.budget import at_most
from evertick.roles.scheduler.planning import LOOP_STEPS
from evertick.runtime.event_loop import Slices
from evertick.store import references as rules, tenants
from evertick.store.statements import Connection

logger = logging.getLogger("evertick.scheduler")

MAX_RULES = 200_000
"""Rules kept at once. A full cache is cleared, and rules are read again when they are needed."""


class RuleCache:
    """Rules by id. `unreadable` says why a text could not be read as a rule.

    `costly` are those whose last plan took more than LOOP_STEPS.

    The id comes from the rule's text, so that what is cached stays right even when the database loses commits. That a
    rule is missing is not cached: it may be added.
    """

    def __init__(self) -> None:
        self.known: dict[int, Rule] = {}
        self.costly: set[int] = set()
        self.unreadable: dict[int, str] = {}
        self.weights: dict[int, int] = {}

    async def load(self, connection: Connection, rule_ids: Iterable[int]) -> None:
        """Read those of these rules that are not cached and exist."""
        wanted = set(rule_ids)
        # Repeatedly: while these were read, another loop may have cleared the cache.
        while missing := wanted - self.known.keys() - self.unreadable.keys():
            if len(self.known) + len(missing) > MAX_RULES:
                self.known.clear()
                self.costly.clear()
                self.unreadable.clear()
                missing = wanted
            texts = await rules.rules(connection, missing)
            wanted -= missing - texts.keys()
            await self._read(texts)

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
                raise  # a fault of the machine, not of the rule: it passes
            except ScheduleTooCostly:
                self.costly.add(rule_id)
            except Exception as error:  # noqa: BLE001 - a corrupt row must not stop its neighbours
                self.known.pop(rule_id, None)
                self.unreadable[rule_id] = f"rule {rule_id} cannot be read: {type(error).__name__}: {error}"

    async def load_weights(self, connection: Connection, tenant_ids: Iterable[int]) -> None:
        """Read the weights of tenants; those of tenants seen before may have changed."""
        self.weights |= await tenants.weights(connection, tenant_ids)
