"""Rate limits of target hosts, as one dispatcher keeps to them: a delivery takes a token of its host's rate bucket.

Without a token an attempt is put back, unstarted, and comes back when tokens are expected: behind those that were put
back before it, at little more than the rate. So a host with very many attempts costs each dispatcher about as many
leases as it may make deliveries, and takes no slots. An attempt that comes for the first time does not overtake those
that wait. Costs one look into a dictionary where no host is limited.

Crash: the tokens of a slice are lost. Slow or lost database: limits that are known stay in force; if a bucket cannot be
asked, nothing is delivered to its host.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from datetime import timedelta

from evertick.domain.attempt import NotStarted
from evertick.domain.breaker import ReturnPace, TenantHost
from evertick.domain.rate_bucket import Drawn, Rate
from evertick.metrics.catalog import HOST_EVENTS, HostEvent
from evertick.runtime.logs import tenant_fields
from evertick.runtime.loop import Loop
from evertick.runtime.rate_slices import RateSlices
from evertick.store.database import Pool, reason_of
from evertick.store.tenants import target_hosts

logger = logging.getLogger("evertick.dispatcher")

LOOK_SECONDS = 2.0
"""A change of a limit is known here after this time."""
PAGE = 5_000
RETURNS = 1.25
"""For each token so many attempts come back, so that none is left unused when some come late."""
DRAW_SECONDS = 1.0
"""A delivery has a slot while it waits for a token. What is drawn later serves the next one."""
_BEHIND_OTHERS = Drawn(0)
_FAILED = Drawn(0, 1_000_000)


class HostRates:
    """The hosts that have a rate limit, and how the deliveries to them are spread."""

    def __init__(self, pool: Pool, slices: RateSlices, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._pool = pool
        self._slices = slices
        self._monotonic = monotonic
        self._rates: dict[TenantHost, Rate] = {}
        self._paces: dict[TenantHost, ReturnPace] = {}
        self._loop = Loop("host rates", self._step)

    def start(self) -> None:
        self._loop.start()

    async def stop(self) -> None:
        await self._loop.stop()

    def is_limited(self, host: TenantHost) -> bool:
        return host in self._rates

    async def admit(self, host: TenantHost, *, is_new: bool) -> NotStarted | None:
        rate = self._rates[host]
        drawn = await self._draw(host, rate, is_new=is_new)
        if drawn.granted:
            return None
        HOST_EVENTS.add(1, HostEvent.RATE_DEFERRED)
        pace = self._paces.setdefault(host, ReturnPace())
        wait = timedelta(microseconds=drawn.wait_us)
        delay = pace.delay(wait, self._monotonic(), RETURNS * rate.per_second)
        return NotStarted(f"deferred: the rate limit of {host.host}", wait=delay)

    def give_back(self, host: TenantHost) -> None:
        if host in self._rates:
            self._slices.give_back(_key(host), 1)

    async def read(self) -> None:
        """Learn the limits. After a change nothing waits behind those that were put back under the old limit."""
        rates: dict[TenantHost, Rate] = {}
        page: list[target_hosts.LimitedHost] = []
        while not rates or len(page) == PAGE:
            page = await target_hosts.limited(self._pool, after=page[-1].key if page else None, most=PAGE)
            if not page:
                break
            rates |= {row.key: row.rate for row in page}
        now = self._monotonic()
        self._paces = {
            host: pace
            for host, pace in self._paces.items()
            if rates.get(host) == self._rates.get(host) and not pace.is_over(now)
        }
        self._rates = rates

    async def _step(self) -> float:
        await self.read()
        return LOOK_SECONDS

    async def _draw(self, host: TenantHost, rate: Rate, *, is_new: bool) -> Drawn:
        pace = self._paces.get(host)
        if is_new and pace is not None and not pace.is_over(self._monotonic()):
            return _BEHIND_OTHERS
        try:
            async with asyncio.timeout(DRAW_SECONDS):
                return await self._slices.take(_key(host), rate, least=1, most=1)
        except Exception as error:  # noqa: BLE001 - a delivery must not fail because of our database
            logger.warning(
                "the rate limit of %s is unknown, nothing is delivered: %s",
                host.host,
                reason_of(error),
                extra=tenant_fields(host.tenant_id) | {"host": host.host},
            )
            return _FAILED


def _key(host: TenantHost) -> str:
    """The name of a host's rate bucket."""
    return f"host:{host.tenant_id}:{host.host}"
