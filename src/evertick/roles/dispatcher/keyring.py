"""The secrets of all tenants that have HTTP jobs. They are there before an attempt is leased: delivering never waits
for them, and a tenant whose secrets cannot be read keeps its attempts in their lanes.
"""

import logging

from evertick.domain.job.target import HTTP_QUEUE
from evertick.store import rules, secrets
from evertick.store.lanes import Leased
from evertick.store.sealing import CannotUnseal, Seal
from evertick.store.secrets import Sealed
from evertick.store.statements import Connection
from evertick.targets.http.signing import Secret

logger = logging.getLogger("evertick.dispatcher")


class Keyring:
    """What the deliveries of each tenant are signed with."""

    def __init__(self, seal: Seal) -> None:
        self._seal = seal
        self._sealed: dict[int, Sealed] = {}
        self._secrets: dict[int, tuple[Secret, ...]] = {}
        self.unreadable: dict[int, CannotUnseal] = {}

    async def refresh(self, connection: Connection) -> list[int]:
        """Look for new tenants and rotated secrets; returns the queues whose attempts can be signed."""
        queues = await rules.queues(connection, [HTTP_QUEUE])
        tenant_ids = {queue.tenant_id for queue in queues}
        found = await secrets.ensure(connection, self._seal, tenant_ids, lambda: Secret.generate().key)
        for sealed in found.values():
            if self._sealed.get(sealed.tenant_id) != sealed:
                self._read(sealed)
        return [queue.queue_id for queue in queues if queue.tenant_id not in self.unreadable]

    @property
    def has_one_tenant(self) -> bool:
        return len(self._sealed) <= 1

    def secrets_of(self, leased: Leased) -> tuple[Secret, ...] | None:
        """The secrets of the attempt's tenant, as the database names it. None: they are not here."""
        return self._secrets.get(leased.tenant_id)

    def _read(self, sealed: Sealed) -> None:
        self._sealed[sealed.tenant_id] = sealed
        try:
            self._secrets[sealed.tenant_id] = tuple(Secret(key) for key in sealed.open(self._seal))
        except CannotUnseal as error:
            self.unreadable[sealed.tenant_id] = error
            logger.error("webhooks of tenant %d wait: %s", sealed.tenant_id, error)  # noqa: TRY400 - it says it all
        else:
            self.unreadable.pop(sealed.tenant_id, None)
