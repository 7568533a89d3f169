"""The circuit breakers of target hosts, as one dispatcher takes part in them (`domain.breaker` decides).

Each second: report what failed, and what was called of hosts that are watched, in one transaction for all of them; then
read the circuits that others have opened or closed. A host that fails is reported until it was watched for long enough
to open. A host without failures costs one look into a dictionary. While a circuit is open, deliveries are put back, and
come back at a limited rate from the time of the next probe on. The first of them claims the probe in the database, so
that one dispatcher makes it. Calls that began before a circuit was closed do not count: they say how the host was.

Crash: a probe that was claimed is free again after its time, and what was not reported is lost; other calls follow.
Slow or lost database: what is known stays in force, and no probe is made. Locked rows, for example by an operator's
reset, are passed over and reported a second later.
"""

import asyncio
import logging
import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from evertick.domain.attempt import AttemptOutcome, Failed, NotStarted
from evertick.domain.breaker import (
    HALF_OPEN_WAIT,
    MIN_CALLS,
    WINDOW,
    Circuit,
    CircuitState,
    Report,
    ReturnPace,
    TenantHost,
    Verdict,
    apply,
    claim_probe,
    verdict_of,
    wait_for_probe,
)
from evertick.metrics.catalog import HOST_EVENTS, HostEvent
from evertick.runtime.clock import Clock, now_of
from evertick.runtime.logs import tenant_fields
from evertick.runtime.loop import Loop
from evertick.store.database import Pool, reason_of
from evertick.store.tenants import audit, target_hosts
from evertick.store.tenants.audit import AuditRecord

logger = logging.getLogger("evertick.dispatcher")

LOOK_SECONDS = 1.0
"""An opening by another dispatcher is known here after this time."""
MAX_WATCHED = 10_000
MAX_HOST_LENGTH = 261
"""A name has at most 253 characters. What is longer fails before it is called."""
LAST_REPORT_SECONDS = 5.0
LONGEST_CALL_SECONDS = 3700.0
"""No tenant may let a delivery take longer than an hour."""
ACTOR = "dispatcher"
OPENED, CLOSED = "open_circuit", "close_circuit"
"""What the audit log says."""


class _Tally:
    """What was seen of a host since the last report."""

    __slots__ = ("calls", "error", "failures", "probe")

    def __init__(self) -> None:
        self.calls = self.failures = 0
        self.error: str | None = None
        self.probe: Verdict | None = None

    def report(self) -> Report:
        return Report(self.calls, self.failures, self.error, self.probe)


@dataclass(slots=True)
class CircuitCounters:
    """What this dispatcher has done since it started."""

    opened: int = 0
    closed: int = 0
    deferred: int = 0
    probes: int = 0


class Circuits:
    """The circuits that are not closed, as far as is known here, and what is to be reported."""

    def __init__(self, pool: Pool, clock: Clock, monotonic: Callable[[], float] = time.monotonic) -> None:
        self.counters = CircuitCounters()
        self._pool = pool
        self._clock = clock
        self._monotonic = monotonic
        self._not_closed: dict[TenantHost, Circuit] = {}
        self._watched: set[TenantHost] = set()
        self._tallies: dict[TenantHost, _Tally] = {}
        self._to_report: set[TenantHost] = set()
        self._claiming: set[TenantHost] = set()
        self._paces: dict[TenantHost, ReturnPace] = {}
        self._closed: dict[TenantHost, float] = {}  # when circuits were closed lately
        self._turned = monotonic()
        self._loop = Loop("circuits", self._step)

    def start(self) -> None:
        self._loop.start()

    async def stop(self) -> None:
        """Report what is left, unless the database is unavailable."""
        await self._loop.stop()
        try:
            async with asyncio.timeout(LAST_REPORT_SECONDS):
                await self.report()
        except Exception as error:  # noqa: BLE001 - the end of the role: others see the same hosts fail
            logger.warning("the last calls of %d hosts are not reported: %s", len(self._to_report), reason_of(error))

    def is_closed(self, host: TenantHost) -> bool:
        return host not in self._not_closed

    async def admit(self, host: TenantHost) -> NotStarted | None:
        circuit = self._not_closed[host]
        is_due = not wait_for_probe(circuit, now_of(self._clock))
        if is_due and host not in self._claiming and await self._claim(host):
            self.counters.probes += 1
            HOST_EVENTS.add(1, HostEvent.PROBE)
            return None
        self.counters.deferred += 1
        HOST_EVENTS.add(1, HostEvent.CIRCUIT_DEFERRED)
        return self._deferred(host)

    def ended(self, host: TenantHost, outcome: AttemptOutcome | None, *, began: float, is_probe: bool) -> None:
        verdict = verdict_of(outcome)
        if not is_probe and (verdict is Verdict.UNKNOWN or self._is_late(host, began)):
            return
        tally = self._tally(host)
        tally.calls += verdict is not Verdict.UNKNOWN
        if verdict is Verdict.FAILED:
            self._failed(host, tally, outcome)
        if is_probe:
            tally.probe = verdict
            self._to_report.add(host)
            self._loop.wake()

    def answered(self, host: TenantHost, count: int, *, began: float) -> None:
        if not self._is_late(host, began):
            self._tally(host).calls += count

    def _is_late(self, host: TenantHost, began: float) -> bool:
        """Whether a delivery that began then says how the host was before its circuit was closed."""
        return began <= self._closed.get(host, -math.inf)

    def _tally(self, host: TenantHost) -> _Tally:
        tally = self._tallies.get(host)
        if tally is None:
            tally = self._tallies[host] = _Tally()
        return tally

    async def report(self) -> None:
        """Report what was seen of hosts that failed or are watched. Costs nothing if there are none."""
        hosts = self._to_report | (self._watched & self._tallies.keys())
        if hosts:
            reports = {host: self._tallies.pop(host).report() for host in hosts}
            self._to_report -= hosts
            try:
                done = await self._change(reports)
            except BaseException:
                self._keep(reports)
                raise
            # What others have locked is reported the next time.
            self._keep({host: report for host, report in reports.items() if host not in done})
        self._turn()

    async def read(self) -> None:
        """Learn what is watched, by whichever dispatcher's reports."""
        rows = await target_hosts.watched(self._pool, MAX_WATCHED)
        self._watched = {row.key for row in rows}
        not_closed = {row.key: row.circuit for row in rows if row.state != CircuitState.CLOSED.value}
        self._note_closed(self._not_closed.keys() - not_closed.keys())
        self._not_closed = not_closed

    async def _step(self) -> float:
        await self.report()
        await self.read()
        return LOOK_SECONDS

    def _failed(self, host: TenantHost, tally: _Tally, outcome: AttemptOutcome | None) -> None:
        tally.failures += 1
        tally.error = outcome.error if isinstance(outcome, Failed) else None
        if len(host.host) <= MAX_HOST_LENGTH:
            self._to_report.add(host)
        if tally.calls >= MIN_CALLS and 2 * tally.failures >= tally.calls:
            self._loop.wake()  # it may be enough to open

    def _deferred(self, host: TenantHost) -> NotStarted:
        circuit = self._not_closed.get(host)
        wait = HALF_OPEN_WAIT
        if circuit is not None and circuit.state is CircuitState.OPEN:
            wait = wait_for_probe(circuit, now_of(self._clock)) or HALF_OPEN_WAIT
        pace = self._paces.setdefault(host, ReturnPace())
        delay = pace.delay(wait, self._monotonic())
        return NotStarted(f"deferred: circuit open for {host.host}", wait=delay)

    async def _claim(self, host: TenantHost) -> bool:
        """Whether the probe is ours to make. If the answer is lost, nobody makes it until its time is over."""
        self._claiming.add(host)
        try:
            async with self._pool.acquire() as session, session.transaction():
                rows = await target_hosts.lock_available(session, [host])
                circuits = {row.key: row.circuit for row in rows}
                claimed = claim_probe(circuits[host], rows[0].now_at) if rows else None
                if claimed is not None:
                    circuits[host] = claimed
                    await target_hosts.store(session, circuits)
        except Exception as error:  # noqa: BLE001 - a delivery must not fail because of our database
            logger.warning("no probe of %s could be claimed: %s", host.host, reason_of(error), extra=_fields(host))
            return False
        finally:
            self._claiming.discard(host)
        self._learn(circuits)
        return claimed is not None

    async def _change(self, reports: Mapping[TenantHost, Report]) -> Mapping[TenantHost, Circuit]:
        """Apply reports to the circuits that nobody has locked, and return these."""
        await target_hosts.add(self._pool, reports.keys())
        async with self._pool.acquire() as session, session.transaction():
            rows = await target_hosts.lock_available(session, reports.keys())
            before = {row.key: row.circuit for row in rows}
            after = {row.key: apply(row.circuit, reports[row.key], row.now_at) for row in rows}
            if after:
                await target_hosts.store(session, after)
            opened = [host for host in after if _is_closed(before[host]) and not _is_closed(after[host])]
            closed = [host for host in after if _is_closed(after[host]) and not _is_closed(before[host])]
            if opened or closed:
                await audit.record_all(session, [*_entries(OPENED, opened), *_entries(CLOSED, closed)])
        self._learn(after)
        self._say(opened, closed, after, before)
        return after

    def _learn(self, circuits: Mapping[TenantHost, Circuit]) -> None:
        self._note_closed(host for host in circuits if host in self._not_closed and _is_closed(circuits[host]))
        for host, circuit in circuits.items():
            if _is_closed(circuit):
                self._not_closed.pop(host, None)
            else:
                self._not_closed[host] = circuit
            if circuit.is_failing:  # it opens when the others had time to report, whether or not more calls end here
                self._tallies.setdefault(host, _Tally())
                self._to_report.add(host)

    def _note_closed(self, hosts: Iterable[TenantHost]) -> None:
        """Late results of calls before now must not open these again."""
        now = self._monotonic()
        for host in hosts:
            self._closed[host] = now
            self._tallies.pop(host, None)
            self._to_report.discard(host)

    def _say(
        self,
        opened: Iterable[TenantHost],
        closed: Iterable[TenantHost],
        after: Mapping[TenantHost, Circuit],
        before: Mapping[TenantHost, Circuit],
    ) -> None:
        for host in opened:
            self.counters.opened += 1
            HOST_EVENTS.add(1, HostEvent.CIRCUIT_OPENED)
            seen = after[host]
            text = "circuit open for %s of tenant %d: %d of %d calls failed, the last: %s"
            numbers = seen.recent_failures, seen.recent_calls
            logger.warning(text, host.host, host.tenant_id, *numbers, seen.last_error, extra=_fields(host))
        for host in closed:
            self.counters.closed += 1
            HOST_EVENTS.add(1, HostEvent.CIRCUIT_CLOSED)
            lasted = (after[host].changed_at - before[host].changed_at).total_seconds()
            text = "circuit closed for %s of tenant %d after %.0f s"
            logger.info(text, host.host, host.tenant_id, lasted, extra=_fields(host))

    def _keep(self, reports: Mapping[TenantHost, Report]) -> None:
        for host, report in reports.items():
            tally = self._tallies.setdefault(host, _Tally())
            tally.calls += report.calls
            tally.failures += report.failures
            tally.error = tally.error or report.error
            tally.probe = tally.probe or report.probe
            self._to_report.add(host)

    def _turn(self) -> None:
        """Once in each window forget what is too old to count, but not how a probe ended."""
        now = self._monotonic()
        if now - self._turned >= WINDOW.total_seconds():
            self._turned = now
            # One without calls only says that its host is to be looked at again.
            kept = {host: each for host, each in self._tallies.items() if each.probe is not None or not each.calls}
            self._tallies = kept
            self._to_report &= self._tallies.keys()
            self._paces = {host: pace for host, pace in self._paces.items() if not pace.is_over(now)}
            self._closed = {host: at for host, at in self._closed.items() if now - at < LONGEST_CALL_SECONDS}


def _is_closed(circuit: Circuit) -> bool:
    return circuit.state is CircuitState.CLOSED


def _entries(action: str, hosts: Iterable[TenantHost]) -> list[AuditRecord]:
    return [AuditRecord(host.tenant_id, ACTOR, action, host.host, None) for host in hosts]


def _fields(host: TenantHost) -> dict[str, Any]:
    return tenant_fields(host.tenant_id) | {"host": host.host}
