"""A tenant that did nothing wrong: a job each second to a webhook and to a pull worker, and calls of the API.

It writes down when each tick came and how each call went. Probes go over a connection of their own each time, as those
of a load balancer do.
"""

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import datetime
from typing import Any

import httpx
from aiohttp import web

from evertick.runtime.loop import LoopDelay
from hostile.evaluation import NO_TIME, Call, Delay, Tick
from hostile.server import Server

WEBHOOK, WORKER = "webhook", "worker"
SOURCES = (WEBHOOK, WORKER)
CALL_SECONDS = 0.2
READY_SECONDS = 0.5
DELAY_SECONDS = 0.02
TIMEOUT_SECONDS = 30.0
POLL_SECONDS = 5
EACH_SECOND: dict[str, Any] = {
    "schedule": "* * * * * *",
    # However late a tick is, it has a run of its own: being late is judged by its lag.
    "missed_window": "RUN_ALL",
    "misfire_grace_seconds": 600,
    "concurrent_policy": "ALLOW",
    "max_concurrent": 600,
    "max_retries": 5,
    "retry_delay_seconds": 1,
}


class Victim:
    """What it saw, by this machine's clock, which is also the database's."""

    def __init__(self, server: Server) -> None:
        self.ticks: list[Tick] = []
        self.calls: list[Call] = []
        self.delays: list[Delay] = []
        self.hook_url = ""
        self.hanging = 0
        self.released = asyncio.Event()
        self._server = server
        self._numbers = itertools.count()

    async def begin(self, client: httpx.AsyncClient) -> None:
        """Create the jobs."""
        hook = {"type": "http", "url": f"{self.hook_url}/tick"}
        pulled = {"type": "worker", "queue": "victim", "handler": "note"}
        for target in (hook, pulled):
            answer = await client.post("/jobs", json={**EACH_SECOND, "target": target})
            assert answer.status_code == 201, answer.text

    async def receive_webhook(self, request: web.Request) -> web.Response:
        """A delivery."""
        await request.read()
        self._record_tick(WEBHOOK, request.headers["Evertick-Scheduled-At"], request.headers["Evertick-Run-Id"])
        return web.Response(status=204)

    async def hang(self, request: web.Request) -> web.Response:
        """A target of somebody else on the victim's own host, which does not answer during an attack."""
        self.hanging += 1
        await self.released.wait()
        return web.Response()

    async def pull(self, client: httpx.AsyncClient) -> None:
        """Lease and record, again and again."""
        asked = {"worker_id": "victim", "max": 100, "wait_seconds": POLL_SECONDS}
        while True:
            leased = await self._call("lease", lambda: client.post("/queues/victim/lease", json=asked), is_poll=True)
            if leased is None:
                await asyncio.sleep(CALL_SECONDS)
                continue
            attempts = leased.json()["attempts"]
            for attempt in attempts:
                self._record_tick(WORKER, attempt["scheduled_at"], attempt["run_id"])
            if attempts:
                ended = [{"token": attempt["token"], "result": "success"} for attempt in attempts]
                body = {"worker_id": "victim", "outcomes": ended}
                await self._call("record", lambda body=body: client.post("/outcomes", json=body))  # type: ignore[misc]

    async def repeat(self, name: str, ask: Callable[[], Awaitable[httpx.Response]], seconds: float) -> None:
        while True:
            began = time.monotonic()
            await self._call(name, ask)
            await asyncio.sleep(max(0.0, began + seconds - time.monotonic()))

    def new_cron(self) -> dict[str, Any]:
        number = next(self._numbers)
        return _job(f"{number % 60} {number // 60 % 24} 1 1 *")

    def new_recurrence(self) -> dict[str, Any]:
        number = next(self._numbers)
        return _job(f"RRULE:FREQ=WEEKLY;BYDAY=MO;BYHOUR={number // 60 % 24};BYMINUTE={number % 60}")

    async def probe(self) -> httpx.Response:
        """Whether it is alive, over a connection of its own."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self._server.port)
        try:
            writer.write(b"GET /livez HTTP/1.1\r\nHost: victim\r\nConnection: close\r\n\r\n")
            line = await reader.readline()
            await reader.read()
        finally:
            writer.close()
        return httpx.Response(int(line.split()[1]) if line else 503)

    def record_delay(self, seconds: float) -> None:
        self.delays.append(Delay(time.time(), seconds))

    def _record_tick(self, source: str, nominal: str, run_id: str) -> None:
        self.ticks.append(Tick(source, round(datetime.fromisoformat(nominal).timestamp()), time.time(), run_id))

    async def _call(
        self, name: str, ask: Callable[[], Awaitable[httpx.Response]], *, is_poll: bool = False
    ) -> httpx.Response | None:
        began, clock = time.time(), time.monotonic()
        answer, fault = None, None
        try:
            async with asyncio.timeout(TIMEOUT_SECONDS + POLL_SECONDS * is_poll):
                answer = await ask()
            if answer.status_code >= 300:
                fault = f"answered {answer.status_code}"
        except (OSError, TimeoutError, httpx.HTTPError) as error:
            fault = type(error).__name__
        seconds = NO_TIME if is_poll else time.monotonic() - clock
        self.calls.append(Call(name, began, seconds, fault))
        return None if fault else answer


def _job(schedule: str) -> dict[str, Any]:
    return {"schedule": schedule, "target": {"type": "worker", "queue": "victim", "handler": "note"}}


@asynccontextmanager
async def start_victim(server: Server) -> AsyncIterator[Victim]:
    """A victim of its own tenant, at work."""
    victim = Victim(server)
    key = await server.tenant("victim")
    async with AsyncExitStack() as stack:
        victim.hook_url = await _receive(victim, stack)
        caller = await stack.enter_async_context(server.client(key, timeout=TIMEOUT_SECONDS))
        puller = await stack.enter_async_context(server.client(key, timeout=TIMEOUT_SECONDS + POLL_SECONDS))
        await victim.begin(caller)
        delay = LoopDelay(victim.record_delay, DELAY_SECONDS)
        delay.start()
        stack.push_async_callback(delay.stop)
        calls = (
            ("list", lambda: caller.get("/jobs", params={"limit": 5}), CALL_SECONDS),
            ("create", lambda: caller.post("/jobs", json=victim.new_cron()), CALL_SECONDS),
            ("create recurrence", lambda: caller.post("/jobs", json=victim.new_recurrence()), CALL_SECONDS),
            ("livez", victim.probe, CALL_SECONDS),
            ("readyz", lambda: caller.get(f"{server.address}/readyz"), READY_SECONDS),
        )
        tasks = [asyncio.create_task(victim.repeat(*call)) for call in calls]
        tasks.append(asyncio.create_task(victim.pull(puller)))
        stack.push_async_callback(_end, tasks)
        yield victim


async def _receive(victim: Victim, stack: AsyncExitStack) -> str:
    app = web.Application()
    app.router.add_post("/tick", victim.receive_webhook)
    app.router.add_post("/hang", victim.hang)
    runner = web.AppRunner(app, shutdown_timeout=0.1, access_log=None)
    await runner.setup()
    stack.push_async_callback(runner.cleanup)
    await web.TCPSite(runner, "127.0.0.1", 0, backlog=1024).start()
    return f"http://127.0.0.1:{runner.addresses[0][1]}"


async def _end(tasks: list["asyncio.Task[None]"]) -> None:
    for task in tasks:
        task.cancel()
    for result in await asyncio.gather(*tasks, return_exceptions=True):
        assert isinstance(result, asyncio.CancelledError), result
