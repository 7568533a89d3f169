"""Is a database the one that the cluster worked in, or perhaps a restored copy beside it?

A server that was started is compared with the one on which work was last confirmed. A restart and a fail-over go on by
themselves. docs/decisions/0027-restored-copies.md has the reasons.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

RECENT = timedelta(minutes=15)
"""A fail-over loses less than this, and processes that start afresh do so within it. Backups are older, as a rule."""
UPGRADE = timedelta(days=1)
"""`pg_upgrade` of a large server takes hours, with everything stopped."""


class Suspicion(StrEnum):
    """Why a database may be a copy of another that is at work. Set by a scheduler."""

    COPIED = "copied"  # restored from a dump, or copied to another database of a server
    BEHIND = "behind"  # a scheduler has worked in a state of it that is much newer
    RECOVERED = "recovered"  # a server that left the primary's history, long after anything worked in it


EXPLANATIONS = {
    Suspicion.COPIED: "the database was restored from a dump or copied: its tables were not made by a migration here",
    Suspicion.BEHIND: "the database is in an older state than the one that a scheduler worked in: it was restored",
    Suspicion.RECOVERED: "the server was restored from a backup, or promoted after long, and its state is old",
}
REMEDY = (
    "make sure that nothing works in the original any more, or that this copy may run its jobs beside it,"
    " then run `evertick cluster confirm`; ticks since are late or missed, as each job's misfire policy says"
)


def explain(suspicion: Suspicion) -> str:
    return f"nothing fires or runs here: {EXPLANATIONS[suspicion]}"


@dataclass(frozen=True, slots=True)
class Place:
    """Where a database is. None: the server does not tell."""

    system_identifier: int | None
    timeline: int | None
    database_oid: int
    table_oid: int

    def is_copy_of(self, other: "Place") -> bool:
        """Whether the database or its tables were made anew. A physical copy has the same, and so has an upgrade."""
        return (self.database_oid, self.table_oid) != (other.database_oid, other.table_oid)

    def has_history_of(self, other: "Place") -> bool:
        """Whether the server went on where the other stopped. Not after a promotion, a recovery or an upgrade."""
        pairs = ((self.system_identifier, other.system_identifier), (self.timeline, other.timeline))
        return all(mine == its for mine, its in pairs if mine is not None and its is not None)

    def is_upgrade_of(self, other: "Place") -> bool:
        """Whether a new server was made of the other's files: an upgrade keeps the oids alone."""
        identifiers = (self.system_identifier, other.system_identifier)
        return None not in identifiers and self.system_identifier != other.system_identifier


def judge(  # noqa: PLR0913 - both places, and when they were worked in
    here: Place,
    confirmed: Place,
    *,
    active_at: datetime | None,
    now_at: datetime,
    remembered_at: datetime | None,
    suspicion: Suspicion | None = None,
) -> Suspicion | None:
    """What speaks against going on in this database, after its server was started or is another.

    `active_at`: the newest trace of a scheduler in the database. `remembered_at`: when this process last worked in it,
    by the same clock. A scheduler that was among the last ones at work knows that nothing was restored, however long
    the outage was; it also ends the suspicion RECOVERED, of one that started later. All others stay until an operator
    confirms.
    """
    if suspicion is not None and suspicion is not Suspicion.RECOVERED:
        return suspicion
    if here.is_copy_of(confirmed):
        return Suspicion.COPIED
    if active_at is None:
        return suspicion  # nothing was ever at work here
    if remembered_at is not None and active_at < remembered_at - RECENT:
        return Suspicion.BEHIND
    if remembered_at is not None and remembered_at >= active_at - RECENT:
        return None
    longest = UPGRADE if here.is_upgrade_of(confirmed) else RECENT
    is_recovered = active_at < now_at - longest and not here.has_history_of(confirmed)
    return Suspicion.RECOVERED if is_recovered else suspicion


def unreadable(place: Place) -> Iterable[str]:
    """What the server does not tell."""
    if place.system_identifier is None:
        yield "its system identifier"
    if place.timeline is None:
        yield "its timeline"
