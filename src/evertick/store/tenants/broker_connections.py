"""Connections of tenants to message brokers: settings that can be read, and secrets that are sealed."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple

import msgspec

from evertick.contract.connections import MAX_CONNECTIONS
from evertick.store import statements
from evertick.store.database import Session
from evertick.store.statements import Connection, columns
from evertick.store.tenants.secrets import CONNECTIONS, Seal


class ConnectionKey(NamedTuple):
    """A connection of a tenant."""

    tenant_id: int
    name: str


class ConnectionRow(NamedTuple):
    """A connection as it is stored. Each change gives it another `revision`."""

    tenant_id: int
    name: str
    created_at: datetime
    updated_at: datetime
    revision: str
    type: str
    settings: str
    secrets: bytes | None
    secret_names: list[str]

    def __repr__(self) -> str:
        return f"ConnectionRow(tenant_id={self.tenant_id}, name={self.name!r}, revision={self.revision})"

    @property
    def key(self) -> ConnectionKey:
        return ConnectionKey(self.tenant_id, self.name)

    def open(self, seal: Seal) -> dict[str, str]:
        """Its secrets by name; CannotUnseal if the seal is another's."""
        return {} if self.secrets is None else _opened(seal, self.secrets, self.tenant_id)


@dataclass(frozen=True, slots=True)
class Content:
    """What a connection is to be: its settings as JSON, and its secrets."""

    type: str
    settings: str
    secrets: Mapping[str, str] = field(repr=False)


class Revision(NamedTuple):
    tenant_id: int
    name: str
    revision: str


class TypeRow(NamedTuple):
    name: str
    type: str


_SQL = statements.load("broker_connections")
_ADD = _SQL["add"].rows(ConnectionRow)
_LOCK = _SQL["lock"].rows(ConnectionRow)
_REPLACE = _SQL["replace"].rows(ConnectionRow)
_PAGE = _SQL["page"].rows(ConnectionRow)
_USERS = _SQL["users"].values(int)
_IS_OF_SINK = _SQL["is_of_sink"].values(bool)
_TYPES = _SQL["types"].rows(TypeRow)
_TYPES_IN_USE = _SQL["types_in_use"].values(str)
_FIND = _SQL["find"].rows(ConnectionRow)
_REVISIONS = _SQL["revisions"].rows(Revision)
_SEALED_OTHERWISE = _SQL["sealed_otherwise"].rows(ConnectionRow)
_RESEAL = _SQL["reseal"].values(str)
_KEYS = ("tenant_ids", "names")


def sealed(seal: Seal, secrets: Mapping[str, str], tenant_id: int) -> bytes | None:
    """Secrets as they are stored. `seal` is that of the process, whatever its purpose."""
    return seal.to(CONNECTIONS).seal(msgspec.json.encode(secrets), tenant_id) if secrets else None


def _opened(seal: Seal, secrets: bytes, tenant_id: int) -> dict[str, str]:
    return msgspec.json.decode(seal.to(CONNECTIONS).unseal(secrets, tenant_id), type=dict[str, str])


async def add(connection: Connection, key: ConnectionKey, new: Content, seal: Seal) -> ConnectionRow | None:
    """Add a connection. None: its name is taken, or its tenant has as many as it may."""
    return await _ADD.one_or_none(connection, **_stored(key, new, seal), most=MAX_CONNECTIONS)


async def lock(session: Session, key: ConnectionKey) -> ConnectionRow | None:
    return await _LOCK.one_or_none(session, **key._asdict())


async def replace(session: Session, key: ConnectionKey, new: Content, seal: Seal) -> ConnectionRow:
    """Replace a connection that is locked."""
    return await _REPLACE.one(session, **_stored(key, new, seal))


async def remove(connection: Connection, key: ConnectionKey) -> None:
    await _SQL["remove"].execute(connection, **key._asdict())


async def page(
    connection: Connection, tenant_id: int, *, after: str = "", only: str | None = None, most: int = 1
) -> list[ConnectionRow]:
    """A tenant's connections by name, after one of them, or one alone."""
    return await _PAGE.all(connection, tenant_id=tenant_id, after=after, only=only, most=most)


async def users(connection: Connection, key: ConnectionKey, kind: str, most: int) -> int:
    """How many jobs use a connection of this type, counted up to `most`."""
    return await _USERS.one(connection, **key._asdict(), type=kind, most=most)


async def is_of_sink(connection: Connection, key: ConnectionKey) -> bool:
    """Whether the tenant's events go over a connection."""
    return await _IS_OF_SINK.one(connection, **key._asdict())


async def types(connection: Connection, tenant_id: int) -> dict[str, str]:
    """The types of a tenant's connections, by name."""
    return dict(await _TYPES.all(connection, tenant_id=tenant_id))


async def types_in_use(connection: Connection) -> list[str]:
    """The types that connections of any tenant have."""
    return await _TYPES_IN_USE.all(connection)


async def find(connection: Connection, keys: Collection[ConnectionKey]) -> dict[ConnectionKey, ConnectionRow]:
    """Those of the given connections that there are."""
    return {row.key: row for row in await _FIND.all(connection, **columns(_KEYS, sorted(keys)))}


async def revisions(connection: Connection, keys: Collection[ConnectionKey]) -> dict[ConnectionKey, str]:
    """Those of the given connections that there are, and their revisions."""
    rows = await _REVISIONS.all(connection, **columns(_KEYS, sorted(keys)))
    return {ConnectionKey(row.tenant_id, row.name): row.revision for row in rows}


async def sealed_otherwise(
    connection: Connection, seal: Seal, *, after: ConnectionKey, most: int
) -> list[ConnectionRow]:
    """The next connections with secrets that are not sealed with the seal's first key."""
    given = {"after_tenant_id": after.tenant_id, "after_name": after.name}
    return await _SEALED_OTHERWISE.all(connection, stamp=seal.stamp, **given, most=most)


async def reseal(connection: Connection, seal: Seal, found: Sequence[ConnectionRow]) -> int:
    """Seal the same secrets with the first key; how many connections have not changed since they were found."""
    rows = [(*row.key, row.revision, sealed(seal, row.open(seal), row.tenant_id)) for row in found]
    return len(await _RESEAL.all(connection, **columns((*_KEYS, "revisions", "secrets"), rows)))


def _stored(key: ConnectionKey, new: Content, seal: Seal) -> dict[str, object]:
    given = {"type": new.type, "settings": new.settings, "secrets": sealed(seal, new.secrets, key.tenant_id)}
    return {**key._asdict(), **given, "secret_names": sorted(new.secrets)}
