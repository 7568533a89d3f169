"""The cluster's identity: on which server and database its work was last confirmed, and what a server is now."""

from datetime import datetime
from typing import NamedTuple

from evertick.domain.cluster_identity import Place, Suspicion
from evertick.domain.errors import EvertickError
from evertick.store import statements
from evertick.store.statements import Connection


class OtherCluster(EvertickError):  # noqa: N818 - says what is wrong
    """The database belongs to a cluster with another name; the message says what to do."""


class Facts(NamedTuple):
    """What was confirmed last, what the server is now, and when a scheduler was last at work in the database."""

    confirmed_at: datetime | None
    suspected_at: datetime | None
    suspicion: str | None
    name: str | None
    confirmed_start: datetime | None
    confirmed_system: int | None
    confirmed_timeline: int | None
    confirmed_database: int | None
    confirmed_table: int | None
    server_started_at: datetime
    system_identifier: int | None
    timeline: int | None
    database_oid: int
    table_oid: int
    active_at: datetime | None
    now_at: datetime
    is_confirmed: bool

    @property
    def here(self) -> Place:
        return Place(self.system_identifier, self.timeline, self.database_oid, self.table_oid)

    @property
    def confirmed(self) -> Place | None:
        """None: nothing was ever confirmed, as in a new database."""
        if self.confirmed_database is None or self.confirmed_table is None:
            return None
        return Place(self.confirmed_system, self.confirmed_timeline, self.confirmed_database, self.confirmed_table)

    @property
    def suspected(self) -> Suspicion | None:
        return None if self.suspicion is None else Suspicion(self.suspicion)


_SQL = statements.load("identity")
_FACTS = _SQL["facts"].rows(Facts)
_CONFIRM = _SQL["confirm"].values(bool)
_SUSPECT = _SQL["suspect"].values(bool)
_NAME = _SQL["name"].values(str)
_SUSPICION = _SQL["suspicion"].values(str)
_MAY_WORK = _SQL["may_work"].values(bool)


async def facts(connection: Connection) -> Facts:
    return await _FACTS.one(connection)


async def confirm(connection: Connection, known: Facts) -> bool:
    """Let work go on. False: the server is another by now, or somebody else has decided."""
    given = {"server_started_at": known.server_started_at, "confirmed_start": known.confirmed_start}
    return await _CONFIRM.one_or_none(connection, **given, suspected_at=known.suspected_at) is not None


async def suspect(connection: Connection, known: Facts, suspicion: Suspicion) -> bool:
    """Let nothing be done until an operator confirms. False as of `confirm`."""
    given = {"server_started_at": known.server_started_at, "confirmed_start": known.confirmed_start}
    return await _SUSPECT.one_or_none(connection, **given, suspicion=suspicion.value) is not None


async def may_work(connection: Connection) -> bool:
    """Whether the server is confirmed, or a new one on which nothing is compared yet."""
    return await _MAY_WORK.one(connection)


async def set_name(connection: Connection, name: str | None) -> None:
    await _SQL["set_name"].execute(connection, name=name)


async def suspicion(connection: Connection) -> Suspicion | None:
    """Why an operator has to confirm. None: none has to, or no scheduler has looked yet."""
    found = await _SUSPICION.one_or_none(connection)
    return None if found is None else Suspicion(found)


async def check_name(connection: Connection, name: str | None) -> None:
    """Raise OtherCluster unless a process with this name may work in the database."""
    known = await _NAME.one_or_none(connection)
    if known == name:
        return
    here = "this process has no EVERTICK_CLUSTER" if name is None else f"EVERTICK_CLUSTER is {name} here"
    there = "of a cluster without a name" if known is None else f"of the cluster {known}"
    raise OtherCluster(
        f"the database is {there}, and {here}: connect to another database,"
        " or give it this name with `evertick cluster confirm`"
    )
