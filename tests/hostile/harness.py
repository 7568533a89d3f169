"""A server, a victim at work, and attacks on them in turn: each observed, evaluated, and awaited until it is over."""

import asyncio
import itertools
import json
import os
import sys
import time
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import httpx

from evertick.store import database
from hostile import victim as victims
from hostile.attacks import ATTACKS
from hostile.attacks.context import ATTACKER, HANGING, MAX_EXTENSIONS
from hostile.evaluation import LAG_CONSTANT_SECONDS, LAG_FACTOR, MEMORY_MB, AttackResult, Observation, Spread, evaluate
from hostile.machine import parent_of, usage
from hostile.server import LOOPBACK_OPEN, Buckets, Server, scheduler, up, worst_delay
from hostile.victim import SOURCES, TIMEOUT_SECONDS, Victim

TESTS = Path(__file__).parents[1]
BASELINE_SECONDS = 5.0
LATE_SECONDS = 60.0
"""So long a tick or a call of a window may come after it before it counts as missed."""
RECOVERY_SECONDS = 20.0
"""So long after the attacker has gone everything must be as before."""
PATIENCE_SECONDS = 180.0
"""So long a server that did not recover in time is waited for, so that it does not spoil the next attack."""
_T = TypeVar("_T")
_numbers = itertools.count(1)


class Harness:
    """One server and its victim."""

    def __init__(self, server: Server, victim: Victim, postmaster: int) -> None:
        self.server = server
        self._families = (os.getpid(), postmaster)
        self._slowdown = 1.0
        self.baseline = Observation(0.0, 0.0, (), (), (), ())
        self.victim = victim
        self.results: list[AttackResult] = []
        self.is_lost = False
        """The server did not recover from an attack: what others would do to it says nothing."""

    async def observe_baseline(self, seconds: float = BASELINE_SECONDS) -> None:
        """Learn how the victim is served when nobody attacks."""
        await self._until_on_time(time.time(), PATIENCE_SECONDS)
        self.baseline, _ = await self._observe(lambda: asyncio.sleep(seconds))

    async def attack(self, name: str, *, is_heavy: bool = False, **limits: int) -> AttackResult:
        """Run an attack, and evaluate what the victim saw meanwhile and whether it is over afterwards."""
        attack = ATTACKS[name]
        keys = [await self.server.tenant(f"attacker {next(_numbers)}", **limits) for _ in range(attack.tenants)]
        context = {
            "address": self.server.address,
            "keys": keys,
            "hook_url": self.victim.hook_url,
            "is_heavy": is_heavy,
        }
        seconds = attack.heavy_seconds if is_heavy else attack.seconds
        self.victim.released.clear()
        self.victim.hanging = 0
        attacked, counts = await self._observe(lambda: _attacker(name, seconds, context))
        await self._wait_for_hanging(attack.effects.get(HANGING, 0))
        self.victim.released.set()
        if self.victim.hanging:
            counts[HANGING] = self.victim.hanging
        result = evaluate(name, self.baseline, attacked, memory_mb=attack.memory_mb, is_timed=is_heavy, counts=counts)
        fault = attack.fault(counts)
        faults = [
            *result.faults,
            *([fault] if fault else []),
            *attack.missing_effects(counts),
            *await self._recovery_faults(attacked, is_timed=is_heavy),
        ]
        result = replace(result, faults=tuple(faults))
        self.results.append(result)
        sys.stdout.write(f"{row_of(self.baseline, result)}\n")
        return result

    async def _observe(self, action: Callable[[], Awaitable[_T]]) -> tuple[Observation, _T]:
        self.server.reset_peak()
        memory = self.server.memory_mb()
        before = await self.server.delays()
        began, used = time.time(), usage(self._families)
        done = await action()
        ended = time.time()
        await self._wait_for_late(began, ended)
        self._slowdown = usage(self._families).slowdown_since(used)
        peak = self.server.peak_mb()
        worst = await self._worst_delay(before)
        observed = self._observation(began, ended)
        return replace(
            observed, memory_mb=memory, peak_mb=peak, slowdown=self._slowdown, server_delay_seconds=worst
        ), done

    async def _worst_delay(self, before: Buckets) -> float | None:
        try:
            return worst_delay(before, await self.server.delays())
        except httpx.HTTPError:  # it does not even tell
            return float("inf")

    def _observation(self, began: float, ended: float) -> Observation:
        calls = [call for call in self.victim.calls if began <= call.began < ended]
        ticks = [tick for tick in self.victim.ticks if began <= tick.nominal < ended]
        delays = [delay for delay in self.victim.delays if delay.at >= began]
        return Observation(began, ended, SOURCES, ticks, calls, delays)

    async def _wait_for_late(self, began: float, ended: float) -> None:
        """Wait until all ticks of a window came, and all calls that began in it ended; not for ever."""
        deadline = ended + LATE_SECONDS
        while time.time() < deadline:
            observed = self._observation(began, ended)
            wanted = len(SOURCES) * len(observed.nominal_times())
            have = len({(tick.source, tick.nominal) for tick in observed.ticks})
            if have >= wanted and self._calls_ended(ended):
                return
            await asyncio.sleep(0.1)

    async def _wait_for_hanging(self, least: int) -> None:
        """Wait until so many calls hang at the victim's host, which the attacker does not see; not for ever."""
        deadline = time.time() + LATE_SECONDS
        while self.victim.hanging < least and time.time() < deadline:  # noqa: ASYNC110 - the victim tells nobody
            await asyncio.sleep(0.1)

    def _calls_ended(self, ended: float) -> bool:
        names = {call.name for call in self.victim.calls if call.began < ended} - {"lease", "record"}
        return names <= {call.name for call in self.victim.calls if call.began >= ended}

    async def _recovery_faults(self, attacked: Observation, *, is_timed: bool) -> Sequence[str]:
        faults, ended = [], attacked.ended
        try:
            await self._until_on_time(ended, PATIENCE_SECONDS)
        except TimeoutError:
            self.is_lost = True
            faults.append(f"the victim is not on time even {PATIENCE_SECONDS:.0f} s after the attack")
        else:
            if is_timed and time.time() > ended + RECOVERY_SECONDS:
                faults.append(f"the victim was on time only {time.time() - ended:.0f} s after the attack")
        kept = self.server.memory_mb() - attacked.memory_mb
        if kept > MEMORY_MB:
            faults.append(f"{kept:.0f} MB more than before are kept")
        patience = RECOVERY_SECONDS if is_timed else PATIENCE_SECONDS
        if held := await self._held_connections(ended + patience):
            faults.append(f"{held} connections of the attacker are open {patience:.0f} s after it")
        return faults

    async def _held_connections(self, deadline: float) -> int:
        while (held := self.server.connections_from(ATTACKER)) and time.time() < deadline:  # noqa: ASYNC110 - the
            await asyncio.sleep(0.1)  # kernel tells nobody
        return held

    async def _until_on_time(self, after: float, seconds: float) -> None:
        """Wait until one tick of each job after a moment came within its bound."""
        async with asyncio.timeout(seconds):
            while not self._is_on_time(after):  # noqa: ASYNC110 - the victim notes, it tells nobody
                await asyncio.sleep(0.1)

    def _is_on_time(self, after: float) -> bool:
        allowed = LAG_FACTOR * Spread.of(self.baseline.lags()).p99 + LAG_CONSTANT_SECONDS * self._slowdown
        observed = self._observation(after, time.time())
        return {tick.source for tick in observed.ticks if tick.at - tick.nominal <= allowed} == set(SOURCES)


async def _attacker(name: str, seconds: float, context: dict[str, object]) -> dict[str, float]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "hostile.attacker", name, str(seconds), json.dumps(context)),
        stdout=PIPE,
        env={**os.environ, "PYTHONPATH": str(TESTS)},
    )
    try:
        output, _ = await asyncio.wait_for(process.communicate(), MAX_EXTENSIONS * seconds + PATIENCE_SECONDS)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0, f"the attacker {name} failed"
    counts: dict[str, float] = json.loads(output)
    return counts


HEADER = (
    "| attack | lag p50/p99/max calm | under attack | calls p50/p99/max | missed | failed calls | MB grown"
    " | server loop | slowdown by others | attacker saw | result |"
)


def row_of(calm: Observation, result: AttackResult) -> str:
    delay = "?" if result.server_delay_seconds is None else f"over {result.server_delay_seconds:g} s"
    saw = ", ".join(f"{name} {count:g}" for name, count in sorted(result.counts.items()))
    judged = "held" if result.ok else "; ".join([*result.faults[-3:], f"{len(result.faults)} faults"])
    cells = [
        *(result.name, Spread.of(calm.lags()), result.lag, result.latency, result.missed, result.failed_calls),
        *(f"{result.grown_mb:.0f}", delay, f"{result.slowdown:.1f}", saw, judged),
    ]
    return "| " + " | ".join(map(str, cells)) + " |"


@asynccontextmanager
async def start_harness(database_url: str, folder: Path, *, schedulers: int = 0) -> AsyncIterator[Harness]:
    """A server on a database of its own, with a victim that has been calm. `schedulers`: further ones beside it."""
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(up(folder, "--database-url", database_url, **LOOPBACK_OPEN))
        for number in range(schedulers):
            stack.enter_context(scheduler(folder / f"scheduler-{number}.log", database_url))
        victim = await stack.enter_async_context(victims.start_victim(server))
        harness = Harness(server, victim, await _postmaster(database_url))
        await harness.observe_baseline()
        sys.stdout.write(f"\n{HEADER}\n")
        yield harness


async def _postmaster(database_url: str) -> int:
    """The process that the database's backends are children of."""
    connection = await database.connect(database_url)
    try:
        return parent_of(connection.get_server_pid())
    finally:
        await connection.close()


assert TIMEOUT_SECONDS < LATE_SECONDS
