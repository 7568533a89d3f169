"""The target of all brokers: publishes attempts over the connections of their tenants, and says how each ended.

Duty: make the message, find the publisher, wait for the broker's acknowledgement, decide what it means. No database.

Invariants: one deadline spans connecting and publishing. Nothing connects but through the guard. A broker that hangs
holds the slots that its connection may have, and nothing else of its tenant. Neither secrets nor payloads are in any
text.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol

from evertick.contract.broker_targets import BrokerAddress, BrokerTarget, Completion
from evertick.domain.attempt import Attempt, AttemptOutcome, Failed, HandedOver, NotStarted, Succeeded
from evertick.domain.breaker import TenantHost
from evertick.domain.errors import InvalidInput
from evertick.domain.states import Outcome
from evertick.runtime.logs import tenant_fields
from evertick.targets.brokers.message import Addressed, message_of, target_in
from evertick.targets.brokers.publisher import Message, PublishFailed
from evertick.targets.brokers.publishers import ConnectionSettings, NoClient, Publishers
from evertick.targets.egress.resolution import MAX_PER_TENANT, TooManyLookups
from evertick.targets.egress.slots import Busy, Slots
from evertick.targets.events import SOURCE
from evertick.targets.hosts import Hosts

logger = logging.getLogger("evertick.dispatcher")

PER_CONNECTION = 128
"""Messages at once that one connection may wait for."""
LONGEST_SECONDS = 30.0
"""A broker that has not acknowledged by then does not work, whatever the job's timeout."""
UNREADABLE = "the broker sent what cannot be read"
_OVER = "over its time"
NO_SLOT = "deferred: no free slot for its connection"


class ConnectionUnusable(Exception):  # noqa: N818 - says what happened
    """A connection cannot be used here for now."""


class Connections(Protocol):
    """The connections of tenants."""

    def known(self, tenant_id: int, name: str) -> ConnectionSettings | None:
        """A connection that was used lately. Asked for each delivery."""

    async def find(self, tenant_id: int, name: str) -> ConnectionSettings | None:
        """A connection that is not known. None: there is none. ConnectionUnusable: it cannot be used here."""


class BrokerDelivery:
    """Publishes each attempt once."""

    def __init__(  # noqa: PLR0913 - what it uses, and two limits
        self,
        connections: Connections,
        publishers: Publishers,
        timeout_max: Callable[[int], int],
        hosts: Hosts | None = None,
        *,
        slot_wait_seconds: float = 2.0,
        source: str = SOURCE,
    ) -> None:
        self._connections = connections
        self.publishers = publishers
        self._timeout_max = timeout_max
        self._hosts = hosts or Hosts()
        self._slots: Slots[TenantHost] = Slots(PER_CONNECTION, PER_CONNECTION, slot_wait_seconds)
        self._source = source

    async def close(self) -> None:
        await self.publishers.close()

    async def deliver(self, attempt: Attempt) -> AttemptOutcome:
        found = target_in(attempt.spec or "")
        if found is None:
            return Failed("not sent: the job's target cannot be read", retryable=False)
        target = found.target
        host = TenantHost(attempt.tenant_id, f"{target.queue_name}:{target.connection}")
        return await self._hosts.send(
            host,
            lambda: self._publish(attempt, found, host),
            has_breaker=target.circuit_breaker,
            is_new=not attempt.deferrals,
        )

    async def _publish(self, attempt: Attempt, found: Addressed, host: TenantHost) -> AttemptOutcome:
        try:
            message = message_of(attempt, found, self._source)
        except InvalidInput as refused:
            return Failed(f"not sent: the {refused.field} {refused.reason}", retryable=False)
        try:
            await self._slots.take(host, attempt.tenant_id)
        except Busy:
            return NotStarted(NO_SLOT, is_host_busy=True)
        seconds = min(attempt.timeout_seconds, self._timeout_max(attempt.tenant_id), LONGEST_SECONDS)
        # Not by asyncio.timeout, which costs as much as making the message.
        task = asyncio.current_task()
        assert task is not None
        ending = asyncio.get_running_loop().call_later(seconds, task.cancel, _OVER)
        try:
            return await self.publish(attempt.tenant_id, found.target, message)
        except asyncio.CancelledError as cancelled:
            if cancelled.args != (_OVER,) or task.uncancel():
                raise
            return Failed(f"no acknowledgement within {seconds:g} s", result=Outcome.TIMED_OUT)
        finally:
            ending.cancel()
            self._slots.give_back(host, attempt.tenant_id)

    async def publish(self, tenant_id: int, target: BrokerAddress, message: Message) -> AttemptOutcome:
        """Publish a message over the tenant's connection that a target names."""
        name, kind = target.connection, target.queue_name
        try:
            connection = self._connections.known(tenant_id, name)
            if connection is None:
                connection = await self._connections.find(tenant_id, name)
            if connection is None or connection.type != kind:
                return Failed(f"not sent: there is no connection {name!r} of type {kind}", retryable=False)
            used = self.publishers.take(connection)
        except (ConnectionUnusable, NoClient) as error:
            return NotStarted(f"deferred: {error}")
        try:
            return _accepted(target, await used.publisher.publish(message))
        except PublishFailed as error:
            return Failed(str(error), retryable=error.retryable, is_host_well=not error.is_broker_down)
        except TooManyLookups:
            return NotStarted(f"deferred: {MAX_PER_TENANT} names of its tenant's targets are being looked up")
        except Exception as error:  # a broker may answer anything
            logger.warning("the client for %s failed", kind, exc_info=True, extra=tenant_fields(tenant_id))
            return Failed(f"{UNREADABLE} ({type(error).__name__})", is_host_well=False)
        finally:
            self.publishers.give_back(used)


def _accepted(target: BrokerAddress, receipt: str | None) -> AttemptOutcome:
    """What it means that the broker has stored the message."""
    is_reported = isinstance(target, BrokerTarget) and target.completion is Completion.REPORTED
    return HandedOver(receipt) if is_reported else Succeeded(receipt)
