"""Authenticates callers by their API keys."""

import hmac
import time
from typing import NamedTuple

from evertick.domain.access import KeyRole, digest_of, is_well_formed
from evertick.domain.ids import Prefix, format_id
from evertick.runtime.concurrency import Batcher
from evertick.store.database import Pool
from evertick.store.tenants import keys
from evertick.store.tenants.keys import ValidKey
from evertick.store.tenants.tenants import TenantRow

TRUSTED_SECONDS = 5.0
"""For so long a key is accepted without another look-up: a revocation in another process takes effect that late."""
MAX_CACHED = 10_000


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
    """Authenticates callers by their keys, and caches the result for some seconds.

    All look-ups that wait share one statement: keys that do not exist cost next to nothing.
    """

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
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
        found = await keys.of_digests(self._pool, digests)
        return [found.get(digest) for digest in digests]
