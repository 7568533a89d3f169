"""The connections of tenants to brokers, as one dispatcher knows them: read when a delivery first needs one, and again
when it has changed. What it costs grows with the connections in use.

Each second: look which of those in use have changed or are gone. Slow or lost database: what is known stays in use, and
deliveries over a connection that is not known are put back.
"""

import asyncio
import logging
import time
from collections.abc import Callable

from evertick.contract.connections import SETTINGS, settings_in_force
from evertick.runtime.logs import tenant_fields
from evertick.store.database import Pool, reason_of
from evertick.store.tenants import broker_connections
from evertick.store.tenants.broker_connections import ConnectionKey, ConnectionRow
from evertick.store.tenants.secrets import CannotUnseal, Seal
from evertick.targets.brokers.publishers import ConnectionSettings
from evertick.targets.brokers.target import ConnectionUnusable

logger = logging.getLogger("evertick.dispatcher")

KEPT_SECONDS = 60.0
"""A connection that no delivery used for so long is forgotten."""


def settings_of(row: ConnectionRow, seal: Seal) -> ConnectionSettings:
    """A stored connection, opened. CannotUnseal: by another key."""
    settings = settings_in_force(row.type, row.settings)
    return ConnectionSettings(row.tenant_id, row.name, row.type, row.revision, settings, row.open(seal))


class DispatchedConnections:
    """Implements `Connections`. What was not found is remembered until the next look."""

    def __init__(self, pool: Pool, seal: Seal, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._pool = pool
        self._seal = seal
        self._monotonic = monotonic
        self._known: dict[ConnectionKey, ConnectionSettings] = {}
        self._used: dict[ConnectionKey, float] = {}
        self._unusable: dict[ConnectionKey, str | None] = {}  # why; None: there is no such connection
        self._reading: dict[ConnectionKey, asyncio.Task[ConnectionSettings | None]] = {}
        self._told: dict[ConnectionKey, str] = {}

    def known(self, tenant_id: int, name: str) -> ConnectionSettings | None:
        key = ConnectionKey(tenant_id, name)
        self._used[key] = self._monotonic()
        return self._known.get(key)

    async def find(self, tenant_id: int, name: str) -> ConnectionSettings | None:
        key = ConnectionKey(tenant_id, name)
        if key in self._unusable:
            reason = self._unusable[key]
            if reason is None:
                return None
            raise ConnectionUnusable(reason)
        reading = self._reading.get(key)
        if reading is None:
            reading = self._reading[key] = asyncio.create_task(self._read(key))
            reading.add_done_callback(lambda _: self._reading.pop(key, None))
        return await asyncio.shield(reading)

    async def refresh(self) -> None:
        """Forget what has changed, what is gone, and what no delivery uses."""
        self._unusable.clear()
        before = self._monotonic() - KEPT_SECONDS
        self._used = {key: at for key, at in self._used.items() if at > before}
        self._known = {key: each for key, each in self._known.items() if key in self._used}
        if self._known:
            current = await broker_connections.revisions(self._pool, self._known.keys())
            self._known = {key: each for key, each in self._known.items() if current.get(key) == each.revision}

    async def _read(self, key: ConnectionKey) -> ConnectionSettings | None:
        try:
            row = (await broker_connections.find(self._pool, [key])).get(key)
        except Exception as error:
            logger.warning("a connection could not be read: %s", reason_of(error), extra=tenant_fields(key.tenant_id))
            raise ConnectionUnusable("its connection could not be read") from error
        if row is None:
            self._unusable[key] = None
            return None
        if row.type not in SETTINGS:
            raise self._refused(key, f"this version knows no connections of type {row.type}")
        try:
            found = self._known[key] = settings_of(row, self._seal)
        except CannotUnseal as error:
            raise self._refused(key, f"the secrets of its connection cannot be opened here: {error}") from None
        self._told.pop(key, None)
        return found

    def _refused(self, key: ConnectionKey, reason: str) -> ConnectionUnusable:
        self._unusable[key] = reason
        if self._told.get(key) != reason:
            self._told[key] = reason
            text = "messages over connection %s of tenant %d wait: %s"
            logger.error(text, key.name, key.tenant_id, reason, extra=tenant_fields(key.tenant_id))
        return ConnectionUnusable(reason)
