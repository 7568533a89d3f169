"""API keys: making, listing, rotating and revoking them."""

import secrets
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from msgspec.structs import asdict

from evertick.contract.access import LONGEST_GRACE_SECONDS, ApiKey, NewApiKey
from evertick.domain.access import KEYSPACE, SHOWN_LENGTH, KeyRole, digest_of, write_key
from evertick.domain.admission import QuotaName
from evertick.domain.errors import Fault, InvalidFields, InvalidInput
from evertick.domain.ids import Prefix, format_id, parse_id
from evertick.domain.job.checks import NAME_MAX_LENGTH, UNSTORABLE
from evertick.store.database import Session
from evertick.store.engine import lanes
from evertick.store.statements import Connection
from evertick.store.tenants import keys
from evertick.store.tenants.keys import KeyRow, NewKey
from evertick.usecases.context import DEFAULT_PER_PAGE, Page, checked_cursor, checked_limit
from evertick.usecases.errors import KeyEnded, KeyNotFound, QuotaReached

LONGEST_GRACE = timedelta(seconds=LONGEST_GRACE_SECONDS)
MAX_KEYS = 1000
"""Of one tenant that have not ended. Rotating one of so many is allowed: the old one ends."""


class NewSecret(NamedTuple):
    """A key and its secret, which is never shown again, and not in the repr either."""

    key: ApiKey
    secret: str

    def __repr__(self) -> str:
        return f"NewSecret({self.key!r}, ***)"

    def shown(self) -> NewApiKey:
        """The key with its secret, for the one who asked for it."""
        return NewApiKey(**asdict(self.key), api_key=self.secret)


async def create(
    connection: Connection, tenant_id: int, role: KeyRole, name: str = "", expires_at: datetime | None = None
) -> NewSecret:
    """Make a key for a tenant. In a transaction: its lock keeps concurrent calls within the limit."""
    await _check_room(connection, tenant_id, MAX_KEYS)
    return await _create(connection, tenant_id, role, name, expires_at)


async def _check_room(connection: Connection, tenant_id: int, most: int) -> None:
    await keys.lock_tenant(connection, tenant_id)
    if await keys.live(connection, tenant_id, most) >= most:
        raise QuotaReached(QuotaName.API_KEYS, MAX_KEYS)


async def _create(
    connection: Connection, tenant_id: int, role: KeyRole, name: str, expires_at: datetime | None
) -> NewSecret:
    _check_name(name)
    if expires_at is not None and expires_at <= await lanes.clock(connection):
        raise InvalidFields([Fault("/expires_at", "must lie in the future")])
    secret = write_key(secrets.randbelow(KEYSPACE))
    new = NewKey(tenant_id, role, digest_of(secret), secret[:SHOWN_LENGTH], name, expires_at)
    return NewSecret(_key_of(await keys.add(connection, new)), secret)


async def list_keys(
    connection: Connection, tenant_id: int, *, limit: int = DEFAULT_PER_PAGE, cursor: str | None = None
) -> Page[ApiKey]:
    """A tenant's keys, oldest first; those that ended are among them."""
    most = checked_limit(limit)
    after = -1 if cursor is None else checked_cursor(cursor, lambda text: parse_id(Prefix.API_KEY, text))
    rows = await keys.page(connection, tenant_id, after=after, most=most + 1)
    page = tuple(map(_key_of, rows[:most]))
    return Page(page, page[-1].key_id if len(rows) > most else None)


async def get(connection: Connection, tenant_id: int | None, key_id: str) -> ApiKey:
    """A tenant's key; any tenant's if none is given. One that was revoked is only in the list."""
    return _key_of(await _found(connection, tenant_id, key_id))


async def revoke(connection: Connection, tenant_id: int | None, key_id: str) -> ApiKey:
    """End a key at once."""
    found = await _found(connection, tenant_id, key_id)
    revoked = await keys.revoke(connection, found.key_id)
    assert revoked is not None
    return _key_of(revoked)


async def rotate(
    connection: Connection, tenant_id: int | None, key_id: str, grace: timedelta = timedelta(0)
) -> NewSecret:
    """Make a key like this one, which ends after the grace. The new one ends when this one would have."""
    found = await _found(connection, tenant_id, key_id)
    if not timedelta(0) <= grace <= LONGEST_GRACE:
        raise InvalidFields([Fault("/grace_seconds", f"must be from 0 to {int(LONGEST_GRACE.total_seconds())}")])
    if not await keys.replace(connection, found.key_id, grace.total_seconds()):
        raise KeyEnded(key_id)
    await _check_room(connection, found.tenant_id, 2 * MAX_KEYS)
    return await _create(connection, found.tenant_id, KeyRole(found.role), found.name, found.expires_at)


async def create_first(connection: Session, tenant_id: int) -> NewSecret | None:
    """An admin's key for a tenant that never had any. In a transaction, two who ask at once get one between them."""
    await keys.lock_tenant(connection, tenant_id)
    if await keys.has_any(connection, tenant_id):
        return None
    return await create(connection, tenant_id, KeyRole.ADMIN, "first")


def shape_of(key: ApiKey) -> dict[str, Any]:
    """The key as a document, without its secret."""
    return {**asdict(key), "role": str(key.role)}


async def _found(connection: Connection, tenant_id: int | None, key_id: str) -> KeyRow:
    try:
        row = await keys.find(connection, parse_id(Prefix.API_KEY, key_id))
    except InvalidInput:
        row = None
    if row is None or row.revoked_at is not None or tenant_id not in {None, row.tenant_id}:
        raise KeyNotFound(key_id)
    return row


def _check_name(name: str) -> None:
    if len(name) > NAME_MAX_LENGTH or UNSTORABLE.search(name):
        raise InvalidFields([Fault("/name", f"must have at most {NAME_MAX_LENGTH} characters, none of them NUL")])


def _key_of(row: KeyRow) -> ApiKey:
    ids = {"key_id": format_id(Prefix.API_KEY, row.key_id), "tenant_id": format_id(Prefix.TENANT, row.tenant_id)}
    return ApiKey(**row._asdict() | ids | {"role": KeyRole(row.role)})
