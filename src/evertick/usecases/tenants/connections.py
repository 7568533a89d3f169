"""A tenant's connections to message brokers: they are made, shown without their secrets, tested and removed."""

import asyncio
from collections.abc import Mapping
from functools import cached_property

import msgspec
from msgspec.structs import asdict, replace

from evertick.config.settings import Settings
from evertick.contract.connections import (
    MAX_CONNECTIONS,
    BrokerConnection,
    ConnectionCheck,
    NewConnection,
    has_moved,
    read_connection,
    settings_in_force,
    unused_in,
)
from evertick.domain.admission import Refused
from evertick.domain.errors import EvertickError, Fault, InvalidFields
from evertick.domain.limits import QuotaName
from evertick.domain.schedule.describe.english import counted
from evertick.roles.dispatcher.connections import settings_of
from evertick.roles.dispatcher.settings import egress_of, seal_of
from evertick.runtime.concurrency import TenantLimit
from evertick.store.database import Pool, Session
from evertick.store.tenants import broker_connections, tenants
from evertick.store.tenants.broker_connections import ConnectionKey, ConnectionRow, Content
from evertick.store.tenants.secrets import CannotUnseal, Seal
from evertick.targets.brokers.publishers import ConnectionSettings, NoClient, open_publisher
from evertick.targets.brokers.target import UNREADABLE
from evertick.targets.egress.guard import Guard
from evertick.targets.egress.resolution import SystemResolver, TooManyLookups
from evertick.usecases.context import DEFAULT_PER_PAGE, Page, TenantContext, checked_limit, page_of
from evertick.usecases.errors import ConnectionInUse, ConnectionNotFound, NameTaken, QuotaReached

CHECK_SECONDS = 15.0
CHECKS_PER_TENANT = 2
COUNTED_JOBS = 1000


class ConnectionAccess:
    """The seal and the egress guard of a process that does not dispatch, each made when it is first needed."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._limit = TenantLimit(CHECKS_PER_TENANT, max_waiting=10, wait_seconds=CHECK_SECONDS)

    @cached_property
    def seal(self) -> Seal:
        return seal_of(self._settings)

    @cached_property
    def _resolver(self) -> SystemResolver:
        return SystemResolver()

    async def check(self, tenant: TenantContext, row: ConnectionRow) -> ConnectionCheck:
        """Connect and authenticate, from this process, and say what was found."""
        egress = egress_of(self._settings, await tenants.count(tenant.pool), runs_api=True)
        guard = Guard(egress.policy, self._resolver)
        async with self._limit.slot(tenant.tenant_id):
            found = await self._check(row, guard)
        unused = unused_in(row.type, settings_in_force(row.type, row.settings), row.secret_names)
        return replace(found, detail="; ".join([found.detail, *unused]))

    async def _check(self, row: ConnectionRow, guard: Guard) -> ConnectionCheck:
        try:
            return ConnectionCheck(is_usable=True, detail=await _found(settings_of(row, self.seal), guard))
        except TimeoutError:
            return ConnectionCheck(is_usable=False, detail=f"no answer within {CHECK_SECONDS:g} s")
        except TooManyLookups:
            return ConnectionCheck(is_usable=False, detail="too many names are being looked up: try again")
        except (CannotUnseal, NoClient) as error:
            return ConnectionCheck(is_usable=False, detail=f"the API cannot test it: {error}")
        except EvertickError as error:  # the guard, or the broker's client
            return ConnectionCheck(is_usable=False, detail=str(error))
        except Exception as error:  # noqa: BLE001 - a broker may answer anything
            return ConnectionCheck(is_usable=False, detail=f"{UNREADABLE} ({type(error).__name__})")


async def _found(connection: ConnectionSettings, guard: Guard) -> str:
    publisher = open_publisher(connection, guard)
    try:
        async with asyncio.timeout(CHECK_SECONDS):
            return await publisher.check()
    finally:
        await publisher.close()


async def list_connections(
    tenant: TenantContext, *, limit: int = DEFAULT_PER_PAGE, cursor: str | None = None
) -> Page[BrokerConnection]:
    """The connections by name."""
    most = checked_limit(limit)
    rows = await broker_connections.page(tenant.pool, tenant.tenant_id, after=cursor or "", most=most + 1)
    return page_of(map(_view_of, rows), most, lambda connection: connection.name)


async def get(tenant: TenantContext, name: str) -> BrokerConnection:
    return _view_of(await row_of(tenant, name))


async def row_of(tenant: TenantContext, name: str) -> ConnectionRow:
    """A connection as it is stored, or ConnectionNotFound."""
    rows = await broker_connections.page(tenant.pool, tenant.tenant_id, only=name)
    if not rows:
        raise ConnectionNotFound(repr(name))
    return rows[0]


async def create(tenant: TenantContext, fields: object, seal: Seal) -> BrokerConnection:
    """Add a connection. NameTaken: there is one of this name."""
    new = read_connection(fields)
    if new.name is None:
        raise InvalidFields([Fault("/name", "is required")])
    key = ConnectionKey(tenant.tenant_id, new.name)
    row = await broker_connections.add(tenant.pool, key, _content(new, {}), seal)
    if row is not None:
        return _view_of(row)
    if await broker_connections.page(tenant.pool, tenant.tenant_id, only=new.name):
        raise NameTaken(new.name, "connection")
    raise QuotaReached(Refused(QuotaName.CONNECTIONS, MAX_CONNECTIONS))


async def put(tenant: TenantContext, name: str, fields: object, seal: Seal) -> tuple[BrokerConnection, bool]:
    """Create or replace a connection, and say whether it is new. Secrets that are not given stay as they are.
    With another server they have to be given: who may edit a connection must not learn its secrets there.

    ConnectionInUse: it would be of another type, and jobs or the sink of events use it. Dispatchers know within
    seconds.
    """
    new = read_connection(fields)
    if new.name not in {None, name}:
        raise InvalidFields([Fault("/name", f"must be {name!r}, the name that is put, or left out")])
    key = ConnectionKey(tenant.tenant_id, name)

    async def work(session: Session) -> ConnectionRow | None:
        before = await broker_connections.lock(session, key)
        if before is None:
            return None
        if before.type != new.type:
            await _check_unused(session, before)
        kept = before.open(seal) if before.type == new.type else {}
        _check_secrets(before, new, kept)
        return await broker_connections.replace(session, key, _content(new, kept), seal)

    row = await tenant.in_transaction(work)
    if row is not None:
        return _view_of(row), False
    given = {**fields, "name": name} if isinstance(fields, dict) else fields
    return await create(tenant, given, seal), True


async def remove(tenant: TenantContext, name: str) -> None:
    """Remove a connection. ConnectionInUse: jobs or the sink of events use it."""
    key = ConnectionKey(tenant.tenant_id, name)

    async def work(session: Session) -> None:
        row = await broker_connections.lock(session, key)
        if row is None:
            raise ConnectionNotFound(repr(name))
        await _check_unused(session, row)
        await broker_connections.remove(session, key)

    await tenant.in_transaction(work)


async def reseal(pool: Pool | Session, seal: Seal, most: int) -> int:
    """Seal the secrets of all connections with the first key; returns of how many."""
    done, after = 0, ConnectionKey(0, "")
    while found := await broker_connections.sealed_otherwise(pool, seal, after=after, most=most):
        done += await broker_connections.reseal(pool, seal, found)
        after = found[-1].key
    return done


async def _check_unused(session: Session, row: ConnectionRow) -> None:
    jobs = await broker_connections.users(session, row.key, row.type, COUNTED_JOBS)
    if jobs:
        users = f"{jobs} or more jobs" if jobs == COUNTED_JOBS else counted(jobs, "job")
        raise ConnectionInUse(row.name, f"it is used by {users}: change or delete first what uses it")
    if await broker_connections.is_of_sink(session, row.key):
        raise ConnectionInUse(row.name, "the sink of events names it; give that another one, or remove it")


def _check_secrets(before: ConnectionRow, new: NewConnection, kept: Mapping[str, str]) -> None:
    """Refuse to send secrets elsewhere that were not given again."""
    missing = sorted(kept.keys() - new.secrets.keys())
    if missing and has_moved(settings_in_force(before.type, before.settings), asdict(new.settings)):
        reason = "must be given again, or emptied: the connection has another server or other TLS settings now"
        raise InvalidFields([Fault(f"/secrets/{name}", reason) for name in missing])


def _content(new: NewConnection, kept: dict[str, str]) -> Content:
    secrets = {name: text for name, text in {**kept, **new.secrets}.items() if text}
    return Content(new.type, msgspec.json.encode(new.settings).decode(), secrets)


def _view_of(row: ConnectionRow) -> BrokerConnection:
    return BrokerConnection(
        name=row.name,
        type=row.type,
        settings=settings_in_force(row.type, row.settings),
        secrets=tuple(row.secret_names),
        created_at=row.created_at,
        updated_at=row.updated_at,
    )
