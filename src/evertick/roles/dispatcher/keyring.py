"""What a dispatcher knows of the tenants that have HTTP jobs: their queues, their secrets, and how long a delivery may
take. It is there before an attempt is leased: delivering never waits for it, and a tenant whose secrets cannot be read
keeps its attempts in their lanes.
"""

import logging

from evertick.contract.target import HTTP_QUEUE
from evertick.domain.fairness import Tenants
from evertick.store import secrets, tenants
from evertick.store.sealing import CannotUnseal, Seal
from evertick.store.secrets import Sealed
from evertick.store.statements import Connection
from evertick.targets.http.signing import Secret

logger = logging.getLogger("evertick.dispatcher")

HTTP_TIMEOUT_MAX_SECONDS = 300
"""As long as a tenant's own setting is not known."""


class Keyring:
    """What the deliveries of each tenant are signed with, and where its attempts are.

    `queues`: of tenants whose deliveries can be signed, from queue to tenant. `tenants`: how many there are, with HTTP
    jobs or without.
    """

    def __init__(self, seal: Seal) -> None:
        self._seal = seal
        self._sealed: dict[int, Sealed] = {}
        self._secrets: dict[int, tuple[Secret, ...]] = {}
        self._timeouts: dict[int, int] = {}
        self.unreadable: dict[int, CannotUnseal] = {}
        self.queues: dict[int, int] = {}
        self.tenants = 1

    async def refresh(self, connection: Connection) -> None:
        """Look for new tenants, rotated secrets and changed limits."""
        queues = await tenants.of_queue(connection, HTTP_QUEUE)
        self.tenants = await tenants.count(connection)
        self._timeouts = {queue.tenant_id: queue.http_timeout_max_seconds for queue in queues}
        found = await secrets.ensure(connection, self._seal, self._timeouts, lambda: Secret.generate().key)
        for sealed in found.values():
            if self._sealed.get(sealed.tenant_id) != sealed:
                self._read(sealed)
        self.queues = {queue.queue_id: queue.tenant_id for queue in queues if queue.tenant_id not in self.unreadable}

    def sharing(self) -> Tenants:
        """Among how many tenants slots are shared."""
        return Tenants(len(self._timeouts), max(self.tenants - len(self._timeouts), 0))

    def secrets_of(self, tenant_id: int) -> tuple[Secret, ...] | None:
        """The secrets of a tenant. None: they are not here."""
        return self._secrets.get(tenant_id)

    def timeout_max(self, tenant_id: int) -> int:
        """How many seconds a delivery of the tenant may take, whatever its job says."""
        return self._timeouts.get(tenant_id, HTTP_TIMEOUT_MAX_SECONDS)

    def _read(self, sealed: Sealed) -> None:
        self._sealed[sealed.tenant_id] = sealed
        try:
            self._secrets[sealed.tenant_id] = tuple(Secret(key) for key in sealed.open(self._seal))
        except CannotUnseal as error:
            self.unreadable[sealed.tenant_id] = error
            logger.error("webhooks of tenant %d wait: %s", sealed.tenant_id, error)  # noqa: TRY400 - it says it all
        else:
            self.unreadable.pop(sealed.tenant_id, None)
