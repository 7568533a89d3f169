"""The publishers of one process: one for each connection of a tenant that deliveries use, made when it is needed.

A connection that was changed gets a new publisher; the old one is closed when its last delivery has ended. What nobody
uses for a while is closed.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from typing import Any

from evertick.contract.broker_targets import BrokerType
from evertick.domain.errors import EvertickError
from evertick.targets.brokers.publisher import Connect, Dial, Publisher
from evertick.targets.egress.guard import Guard

logger = logging.getLogger("evertick.dispatcher")

IDLE_SECONDS = 60.0
CLOSE_SECONDS = 5.0
_EXTRAS = {BrokerType.REDIS_STREAM: "redis"}


class NoClient(EvertickError):  # noqa: N818 - says what is missing
    """The client of a broker is not installed here."""

    def __init__(self, kind: str) -> None:
        extra = _EXTRAS.get(BrokerType(kind), kind)
        super().__init__(f"the client for {kind} is not installed here: pip install 'evertick[{extra}]'")


@dataclass(frozen=True, slots=True)
class ConnectionSettings:
    """A connection of a tenant, opened. Each change gives it another `revision`."""

    tenant_id: int
    name: str
    type: str
    revision: str
    settings: Mapping[str, Any]
    secrets: Mapping[str, str] = field(repr=False)


def connect_of(kind: str) -> Connect:
    """How publishers of a type are made. NoClient: its client is not installed."""
    try:
        module = import_module(f"evertick.targets.brokers.{kind}")
    except ModuleNotFoundError as error:
        raise NoClient(kind) from error
    connect: Connect = module.open_publisher
    return connect


def missing_client(kind: str) -> NoClient | None:
    """Why publishers of a type cannot be made here, if so."""
    try:
        connect_of(kind)
    except NoClient as error:
        return error
    return None


def open_publisher(connection: ConnectionSettings, guard: Guard) -> Publisher:
    """A publisher for a connection, which connects only where the guard lets it."""
    endpoint_url = connection.settings.get("endpoint_url")
    scheme = None if endpoint_url is None else str(endpoint_url).partition("://")[0].lower()

    async def dial(host: str, port: int) -> list[str]:
        return await guard.dial(host, port, connection.tenant_id, scheme)

    checked: Dial = dial
    return connect_of(connection.type)(connection.settings, connection.secrets, checked)


class UsedPublisher:
    """One that is open, and how many deliveries use it."""

    __slots__ = ("last_used", "publisher", "revision", "users")

    def __init__(self, publisher: Publisher, revision: str) -> None:
        self.publisher = publisher
        self.revision = revision
        self.users = 0
        self.last_used = 0.0


class Publishers:
    """At most `most` are kept open; there must be more than deliveries at once, so that one of them is idle."""

    def __init__(
        self,
        connect: Callable[[ConnectionSettings], Publisher],
        most: int,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._connect = connect
        self._most = most
        self._monotonic = monotonic
        self._open: dict[tuple[int, str], UsedPublisher] = {}
        self._retired: list[UsedPublisher] = []

    @classmethod
    def guarded(cls, guard: Guard, most: int) -> "Publishers":
        return cls(partial(open_publisher, guard=guard), most)

    def __len__(self) -> int:
        return len(self._open) + len(self._retired)

    def take(self, connection: ConnectionSettings) -> UsedPublisher:
        """The publisher of a connection, for one delivery, which gives it back. NoClient: there can be none here."""
        key = connection.tenant_id, connection.name
        found = self._open.get(key)
        if found is not None and found.revision != connection.revision:
            self._retired.append(self._open.pop(key))
            found = None
        if found is None:
            found = UsedPublisher(self._connect(connection), connection.revision)
            self._make_room()
            self._open[key] = found
        found.users += 1
        return found

    def give_back(self, used: UsedPublisher) -> None:
        used.users -= 1
        used.last_used = self._monotonic()

    def renew(self) -> None:
        """Use none of the open connections again: they may lead to addresses that the guard no longer permits."""
        self._retired += self._open.values()
        self._open.clear()

    async def close_unused(self) -> None:
        before = self._monotonic() - IDLE_SECONDS
        for key, each in list(self._open.items()):
            if not each.users and each.last_used < before:
                self._retired.append(self._open.pop(key))
        unused = [each for each in self._retired if not each.users]
        self._retired = [each for each in self._retired if each.users]
        await asyncio.gather(*(_close(each.publisher) for each in unused))

    async def close(self) -> None:
        every, self._open, self._retired = [*self._open.values(), *self._retired], {}, []
        await asyncio.gather(*(_close(each.publisher) for each in every))

    def _make_room(self) -> None:
        if len(self._open) >= self._most:
            idle = [(each.last_used, key) for key, each in self._open.items() if not each.users]
            if idle:
                self._retired.append(self._open.pop(min(idle)[1]))


async def _close(publisher: Publisher) -> None:
    try:
        async with asyncio.timeout(CLOSE_SECONDS):
            await publisher.close()
    except Exception as error:  # noqa: BLE001 - nothing waits in it any more
        logger.debug("a publisher was not closed in order: %s", error)
