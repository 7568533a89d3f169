"""Leases from the HTTP queues of all tenants whose deliveries can be signed."""

import time
from typing import Any

from evertick.roles.dispatcher.keyring import Keyring
from evertick.roles.worker.intake import Intake

LOOK_SECONDS = 1.0
"""A new tenant's first delivery waits so long at most, and so long a rotation takes to be felt."""


class SignableIntake(Intake):
    """A worker's intake that looks for queues and secrets in one go."""

    def __init__(self, *arguments: Any, keyring: Keyring, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._keyring = keyring

    async def _find_queues(self) -> None:
        now = time.monotonic()
        if now - self._looked >= LOOK_SECONDS:
            self._queue_ids = frozenset(await self._keyring.refresh(self._pool))
            self._looked = now
