"""API keys: making, listing, rotating and revoking them, and authenticating callers by them."""

import hmac
import secrets
import time
from collections.abc import Awaitable, Callable, Collection
from datetime import datetime, timedelta
from typing import Any, NamedTuple, TypeAlias

from evertick.contract.access import LONGEST_GRACE_SECONDS, ApiKey, NewApiKey
from evertick.domain.access import KEYSPACE, SHOWN_LENGTH, KeyRole, digest_of, is_well_formed, write_key
from evertick.domain.admission import Refused
from evertick.domain.errors import Fault, InvalidFields, InvalidInput
from evertick.domain.ids import Prefix, format_id, parse_id
from evertick.domain.job.checks import NAME_MAX_LENGTH, UNSTORABLE
from evertick.domain.limits import QuotaName
from evertick.runtime.concurrency import Batcher
from evertick.store.database import Pool, Session
from evertick.store.engine import lanes
from evertick.store.statements import Connection
from evertick.store.tenants import keys
from evertick.store.tenants.keys import KeyRow, NewKey, ValidKey
from evertick.store.tenants.tenants import TenantRow
from evertick.usecases.context import DEFAULT_PER_PAGE, Page, checked_cursor, checked_limit, page_of
from evertick.usecases.errors import KeyEnded, KeyNotFound, QuotaReached

LONGEST_GRACE = timedelta(seconds=LONGEST_GRACE_SECONDS)
MAX_KEYS = 1000
"""Of one tenant that have not ended. Rotating one of so many is allowed: the old one ends."""
TRUSTED_SECONDS = 5.0
"""For so long a key is accepted without another look-up: a revocation in another process takes effect that late."""
MAX_CACHED = 10_000


async def create(
    connection: Connection, tenant_id: int, role: KeyRole, name: str = "", expires_at: datetime | None = None
) -> NewApiKey:
    """Make a key for a tenant. In a transaction: its lock keeps concurrent calls within the limit."""
    await _check_room(connection, tenant_id, MAX_KEYS)
    return await _create(connection, tenant_id, role, name, expires_at)


async def _check_room(connection: Connection, tenant_id: int, most: int) -> None:
    await keys.lock_tenant(connection, tenant_id)
    if await keys.live(connection, tenant_id, most) >= most:
        raise QuotaReached(Refused(QuotaName.API_KEYS, MAX_KEYS))


async def _create(
    connection: Connection, tenant_id: int, role: KeyRole, name: str, expires_at: datetime | None
) -> NewApiKey:
    _check_name(name)
    if expires_at is not None and expires_at <= await lanes.clock(connection):
        raise InvalidFields([Fault("/expires_at", "must lie in the future")])
    secret = write_key(secrets.randbelow(KEYSPACE))
    new = NewKey(tenant_id, role, digest_of(secret), secret[:SHOWN_LENGTH], name, expires_at)
    return NewApiKey(**_fields_of(await keys.add(connection, new)), api_key=secret)


async def list_keys(
    connection: Connection, tenant_id: int, *, limit: int = DEFAULT_PER_PAGE, cursor: str | None = None
) -> Page[ApiKey]:
    """A tenant's keys, oldest first; those that ended are among them."""
    most = checked_limit(limit)
    after = -1 if cursor is None else checked_cursor(cursor, lambda text: parse_id(Prefix.API_KEY, text))
    rows = await keys.page(connection, tenant_id, after=after, most=most + 1)
    return page_of(map(_key_of, rows), most, lambda key: key.key_id)


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
) -> NewApiKey:
    """Make a key like this one, which ends after the grace. The new one ends when this one would have."""
    found = await _found(connection, tenant_id, key_id)
    if not timedelta(0) <= grace <= LONGEST_GRACE:
        raise InvalidFields([Fault("/grace_seconds", f"must be from 0 to {int(LONGEST_GRACE.total_seconds())}")])
    if not await keys.replace(connection, found.key_id, grace.total_seconds()):
        raise KeyEnded(key_id)
    await _check_room(connection, found.tenant_id, 2 * MAX_KEYS)
    return await _create(connection, found.tenant_id, KeyRole(found.role), found.name, found.expires_at)


async def create_first(connection: Session, tenant_id: int) -> NewApiKey | None:
    """An admin's key for a tenant that never had any. In a transaction, two who ask at once get one between them."""
    await keys.lock_tenant(connection, tenant_id)
    if await keys.has_any(connection, tenant_id):
        return None
    return await create(connection, tenant_id, KeyRole.ADMIN, "first")


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
    return ApiKey(**_fields_of(row))


def _fields_of(row: KeyRow) -> dict[str, Any]:
    ids = {"key_id": format_id(Prefix.API_KEY, row.key_id), "tenant_id": format_id(Prefix.TENANT, row.tenant_id)}
    return row._asdict() | ids


FindKeys: TypeAlias = Callable[[Connection, Collection[bytes]], Awaitable[dict[bytes, ValidKey]]]


class Caller(NamedTuple):
    """The holder of a key."""

    key_id: str
    role: KeyRole
    tenant: TenantRow


class _Known(NamedTuple):
    caller: Caller
    until: float
    generation: int


class KeyRing:
    """Authenticates callers by their keys, and caches the result for some seconds. `find` looks for valid ones.

    All look-ups that wait share one statement: keys that do not exist cost next to nothing.
    """

    def __init__(self, pool: Pool, find: FindKeys = keys.of_digests) -> None:
        self._pool = pool
        self._find = find
        self._known: dict[bytes, _Known] = {}
        self._generation = 0
        self._changed: dict[int, int] = {}  # in which generation a tenant's keys were changed
        self._look_ups = Batcher[None, bytes, ValidKey | None](self._look_up)

    async def caller(self, secret: str) -> Caller | None:
        """The holder of this secret. None: it is not valid, or not any more."""
        if not is_well_formed(secret):
            return None
        digest = digest_of(secret)
        known = self._known.get(digest)
        if known is not None and time.monotonic() < known.until and self._is_current(known):
            return known.caller
        return await self._looked_up(digest)

    def last_seen(self, secret: str) -> int | None:
        """The tenant that had this key at the last look-up, if that is cached. It authenticates nothing."""
        known = self._known.get(digest_of(secret))
        return None if known is None else known.caller.tenant.tenant_id

    def forget(self, tenant_id: int) -> None:
        """Drop what is cached of a tenant: its keys or its limits were changed in this process."""
        self._generation += 1
        self._changed[tenant_id] = self._generation

    def _is_current(self, known: _Known) -> bool:
        return known.generation >= self._changed.get(known.caller.tenant.tenant_id, 0)

    async def _looked_up(self, digest: bytes) -> Caller | None:
        generation = self._generation
        found = await self._look_ups.ask(None, digest)
        # The index has compared it already, in a time that reveals digests at most. This takes the same time always.
        if found is None or not hmac.compare_digest(found.digest, digest):
            self._known.pop(digest, None)
            return None
        if found.is_unseen:
            await keys.touch(self._pool, found.key_id)
        caller = Caller(format_id(Prefix.API_KEY, found.key_id), KeyRole(found.role), found.tenant)
        if len(self._known) >= MAX_CACHED:
            self._known.clear()
        left = TRUSTED_SECONDS if found.seconds_left is None else min(TRUSTED_SECONDS, found.seconds_left)
        # Of the generation before the look-up: after a change since then, the next call looks up again.
        self._known[digest] = _Known(caller, time.monotonic() + left, generation)
        return caller

    async def _look_up(self, _: None, digests: list[bytes]) -> list[ValidKey | Exception | None]:
        found = await self._find(self._pool, digests)
        return [found.get(digest) for digest in digests]
