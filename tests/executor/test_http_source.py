"""What the HTTP source makes of a server that is in trouble."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from evertick.client import ApiError, AsyncClient, Invalid
from evertick.client.errors import ApiProblem
from evertick.contract.workers import Heartbeat, Lease as LeaseAnswer, LeasedAttempt, Recorded
from evertick.domain.attempt import SUCCEEDED, NotRecorded, Succeeded
from evertick.domain.ids import Prefix, format_id, format_run_id
from evertick.domain.schedule.instants import from_us
from evertick.executor.held_leases import HeldLease, HeldLeases
from evertick.executor.leaving import Leaving
from evertick.executor.recorder import Recorder
from evertick.executor.source import AttemptCounters, RecordFailure, UnstartedAttempt
from evertick.executor.sources.http.source import HttpSource, RemoteAttempt
from evertick.runtime.clock import DatabaseClock
from evertick.runtime.loop import Loop

AT = datetime(2026, 6, 9, 12, tzinfo=UTC)
UNAVAILABLE = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


def given_attempt(timeout_seconds: int = 2) -> LeasedAttempt:
    return LeasedAttempt(
        token="1.1",
        run_id=format_run_id(1, 0),
        job_id=format_id(Prefix.JOB, 1),
        name="job",
        handler="handle",
        payload=None,
        scheduled_at=AT,
        attempt=1,
        reason="tick",
        idempotency_key="key",
        timeout_seconds=timeout_seconds,
        deadline=AT + timedelta(hours=1),
    )


class Trouble:
    """A server that leases one attempt, and then answers 503 until it hangs."""

    def __init__(self) -> None:
        answers = [Heartbeat(cancel=()), LeaseAnswer(lease_seconds=30, attempts=(given_attempt(),))]
        self.answers = [_answer(msgspec.json.encode(each)) for each in answers]
        self.hangs = False
        self.is_asked = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
            if self.hangs:
                self.is_asked.set()
                await reader.read()
            else:
                writer.write(self.answers.pop(0) if self.answers else UNAVAILABLE)
        writer.close()


def _answer(body: bytes) -> bytes:
    head = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


@pytest.fixture
async def trouble() -> AsyncIterator[tuple[Trouble, HttpSource]]:
    trouble = Trouble()
    server = await asyncio.start_server(trouble.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]

    def client(timeout: float | None) -> AsyncClient:
        return AsyncClient(f"http://127.0.0.1:{port}", "evt_none", retries=0, timeout=timeout or 10.0)

    source = HttpSource(client, ["default"])
    await source.open(cast("Any", _Idle()))
    assert await source.lease(1) == 1
    yield trouble, source
    await source.hang_up()
    await source.close()
    server.close()


async def test_attempts_outlive_their_leases_only_while_the_server_says_that_its_database_is_away(
    trouble: tuple[Trouble, HttpSource],
) -> None:
    server, source = trouble
    assert source.drops_expired
    with pytest.raises(ApiError):
        await source.extend([HeldLease(1, 0.0)])
    assert not source.drops_expired
    server.hangs = True
    beat = asyncio.create_task(source.extend([HeldLease(1, 0.0)]))
    await server.is_asked.wait()
    beat.cancel()  # as its time-out does
    await asyncio.wait({beat})
    assert source.drops_expired


async def test_no_poll_waits_longer_than_half_of_a_lease_of_its_server() -> None:
    """What came after a wait as long as its lease would be lost on arrival."""
    asked: list[float] = []
    enough = asyncio.Event()

    async def lease(*_: Any, wait_seconds: float, **__: Any) -> LeaseAnswer:
        asked.append(wait_seconds)
        if len(asked) > 1:
            enough.set()
            await asyncio.Event().wait()
        return LeaseAnswer(lease_seconds=3, attempts=())

    async def answer(*_: Any) -> None:
        return None

    workers = SimpleNamespace(lease=lease, heartbeat=answer)
    source = HttpSource(lambda _: cast("Any", SimpleNamespace(workers=workers, close=answer)), ["default"])
    await source.open(cast("Any", _Idle()))
    source.start()
    await enough.wait()
    await source.stop_leasing()
    assert asked == [0, 1.5]


@pytest.mark.parametrize("seconds", [0, 2])
async def test_a_handler_has_the_timeout_that_the_server_names_however_far_the_deadline_is(seconds: int) -> None:
    async def lease(*_: Any, **__: Any) -> LeaseAnswer:
        return LeaseAnswer(lease_seconds=30, attempts=(given_attempt(seconds),))

    async def answer(*_: Any) -> None:
        return None

    workers = SimpleNamespace(lease=lease, heartbeat=answer)
    source = HttpSource(lambda _: cast("Any", SimpleNamespace(workers=workers, close=answer)), ["default"])
    executor = _Idle()
    await source.open(cast("Any", executor))
    assert await source.lease(1) == 1
    assert [each.timeout_seconds for each in executor.taken] == [seconds]


class _Former:
    """The calls of a server of the version before, which refuses what it does not know; what it took."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, bool]] = []
        self.excerpts: list[str | None] = []

    async def heartbeat(self, _: str, tokens: Any = None, progress: Any = None) -> Heartbeat:
        if tokens:
            self._take("heartbeat", is_new=progress is not None)
        return Heartbeat(cancel=())

    async def record(self, _: str, outcomes: Sequence[Any], *, with_dead: bool = False) -> Recorded:
        self._take("record", is_new=with_dead)
        if any(each.excerpt is not None for each in outcomes):
            raise _invalid()
        self.excerpts += [each.excerpt for each in outcomes]
        return Recorded(recorded=len(outcomes), stale=())

    def _take(self, name: str, *, is_new: bool) -> None:
        self.requests.append((name, is_new))
        if is_new:
            raise _invalid()


def _invalid() -> Invalid:
    return Invalid(ApiProblem(method="POST", path="/", status=422))


async def _former() -> tuple[_Former, HttpSource]:
    async def lease(*_: Any, **__: Any) -> LeaseAnswer:
        return LeaseAnswer(lease_seconds=30, attempts=(given_attempt(),))

    async def close() -> None: ...

    server = _Former()
    workers = SimpleNamespace(lease=lease, heartbeat=server.heartbeat, record=server.record)
    source = HttpSource(lambda _: cast("Any", SimpleNamespace(workers=workers, close=close)), ["default"])
    await source.open(cast("Any", _Idle()))
    assert await source.lease(1) == 1
    return server, source


async def test_leases_are_kept_at_a_server_that_takes_no_progress() -> None:
    server, source = await _former()
    for _ in range(2):
        await source.note_progress({(1, 1): "1 of 2"})
        assert await source.extend([HeldLease(1, 0.0)]) == {1}
    assert server.requests == [("heartbeat", True), ("heartbeat", False), ("heartbeat", False)]


async def test_outcomes_are_recorded_at_a_server_that_names_no_dead_runs() -> None:
    server, source = await _former()
    attempt = _attempt("job", 1)
    with pytest.raises(Invalid):
        await source.record([(attempt, Succeeded("odd"), AT, AT, None)], [])
    for _ in range(2):
        assert await source.record([(attempt, SUCCEEDED, AT, AT, None)], []) == NotRecorded(set(), set())
    refused = [("record", True), ("record", False)]
    assert server.requests == [*refused, *refused, ("record", False)], "an outcome that is refused says nothing of it"


async def test_what_was_done_is_a_success_at_a_server_that_takes_no_excerpts() -> None:
    server, source = await _former()
    recorder = Recorder(source, AttemptCounters(), monotonic=itertools.count(0.0, 3600.0).__next__)
    recorder.add([(_attempt("job", 1), Succeeded("odd"), AT, AT, None)], [])
    await recorder.flush()
    assert server.excerpts == [None]


class _Idle:
    """An executor that has room."""

    name, handler_names = "w", ("handle",)
    slots, held, written_off, may_lease = 1, 0, 0, True
    clock = DatabaseClock()

    def __init__(self) -> None:
        self.held_leases = HeldLeases()
        self.taken: list[Any] = []

    def beat_now(self) -> None:
        pass

    def take(self, attempts: Sequence[Any]) -> None:
        self.taken += attempts


async def test_a_put_back_that_is_refused_holds_up_no_other() -> None:
    source = _Refusing()
    done: list[Any] = []
    put_backs = Leaving(cast("Any", source), "put back", source.put_back, lambda each: each.attempt, done.append)
    attempts = [_attempt(name=name, lease_id=number) for number, name in enumerate(("good", "bad", "fine"))]
    for attempt in attempts:
        put_backs.add(UnstartedAttempt(attempt, "no handler"))
    await put_backs.flush()
    assert (source.put, source.forgotten, done) == (["good", "fine"], [1], attempts)


def _attempt(name: str, lease_id: int) -> RemoteAttempt:
    return RemoteAttempt(
        token=(1, lease_id),
        lease_id=lease_id,
        job_id=256,
        name=name,
        fire_at=from_us(0),
        reason="tick",
        attempt=1,
        deferrals=0,
        handler="handle",
        payload=None,
        timeout_seconds=60,
        idempotency_key="key",
    )


class _Refusing:
    """A source that refuses one attempt, and every batch that has it."""

    def __init__(self) -> None:
        self.put: list[str] = []
        self.forgotten: list[int] = []

    def loop(self, name: str, step: Callable[[], Awaitable[float]]) -> Loop:
        return Loop(name, step)

    def failure_of(self, error: Exception) -> RecordFailure:
        return RecordFailure.UNSTORABLE if isinstance(error, ValueError) else RecordFailure.UNKNOWN

    async def put_back(self, unstarted: Sequence[UnstartedAttempt]) -> None:
        names = [each.attempt.name for each in unstarted]
        if "bad" in names:
            raise ValueError(names)
        self.put += names

    def forget(self, lease_ids: Collection[int]) -> None:
        self.forgotten += lease_ids
