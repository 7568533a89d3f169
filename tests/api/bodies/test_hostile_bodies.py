"""Bodies that are made to cost much: they cost little memory, and never keep the event loop from its other work."""

import asyncio
import gc
import json
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import asyncpg
import pytest

from api.callers import JOB, TARGET, Caller, Callers, is_problem
from api.processes import served
from engine import PATIENCE_SECONDS, stop_clock, until
from evertick.api.bodies import memory_limits
from evertick.api.bodies.batches import MAX_MALFORMED
from evertick.api.bodies.memory_limits import BodyLimits
from evertick.api.bodies.request_body import JSON, MAX_BATCH_BYTES, MAX_BYTES, NDJSON
from evertick.api.routes.batch import FAULT_BYTES_PER_BYTE, FAULT_BYTES_PER_LINE
from evertick.api.server import ApiServer
from evertick.config.settings import Settings

MEBIBYTE = 1_048_576
LONGEST_STEP_SECONDS = 0.1
"""Of processor time, between two turns of the loop: five times what is meant. Without bounds it is many seconds."""


@pytest.fixture
def limits() -> BodyLimits:
    return BodyLimits(128 * MEBIBYTE, 512 * MEBIBYTE)


@pytest.fixture
async def server(database_url: str, limits: BodyLimits) -> AsyncIterator[ApiServer]:
    """With limits that a test can look at."""
    server = ApiServer(database_url, Settings(port=0), connections=4, bodies=limits)
    await server.start()
    yield server
    await server.stop()


@asynccontextmanager
async def steps_of_the_loop() -> AsyncIterator[list[float]]:
    """The longest step of the loop, in seconds of its own thread's processor time: a busy machine adds nothing.

    Neither do the tests that were before: garbage is not looked for in what they left, as in a process that serves.
    """
    longest = [0.0]
    gc.collect()
    gc.freeze()

    async def look() -> None:
        while True:
            began = time.thread_time()
            await asyncio.sleep(0)
            longest[0] = max(longest[0], time.thread_time() - began)

    looking = asyncio.create_task(look())
    yield longest
    looking.cancel()
    gc.unfreeze()


def _head(key: str | None, path: str, media_type: str, size: int) -> bytes:
    lines = [f"POST /api/v1{path} HTTP/1.1", "Host: x", "Connection: close", f"Authorization: Bearer {key}"]
    return "\r\n".join([*lines, f"Content-Type: {media_type}", f"Content-Length: {size}", "", ""]).encode()


def _send(address: str, request: bytes) -> tuple[int, bytes]:
    """The status and the body of the answer, for a client that sends everything before it reads anything."""
    place = urlsplit(address)
    with socket.create_connection((place.hostname, place.port), timeout=PATIENCE_SECONDS) as client:
        client.sendall(request)
        answer = b"".join(iter(lambda: client.recv(65536), b""))
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), body


class Attacker(NamedTuple):
    """A client in a thread of its own: what it does is not on the server's loop."""

    address: str
    caller: Caller

    async def post(self, path: str, media_type: str, body: bytes) -> tuple[int, bytes]:
        request = _head(self.caller.key, path, media_type, len(body)) + body
        return await asyncio.to_thread(_send, self.address, request)

    async def begin_batch(self, limits: BodyLimits) -> socket.socket:
        """Begin a batch that does not end, and wait until the server has read what there is of it."""
        before = limits.held
        begun = await asyncio.to_thread(_begin, self.address, self.caller.key, MEBIBYTE)

        async def is_read() -> bool:
            return limits.held - before > MEBIBYTE // 2

        await until(is_read)
        return begun


@pytest.fixture
def attacker(server: ApiServer, admin: Caller) -> Attacker:
    return Attacker(server.address, admin)


def _filled(text: bytes) -> bytes:
    return text * (MAX_BATCH_BYTES // len(text))


@pytest.mark.parametrize(
    ("media_type", "body", "status"),
    [
        pytest.param(NDJSON, _filled(b"x\n"), 422, id="lines of nothing"),
        pytest.param(NDJSON, _filled(b"\n"), 422, id="blank lines"),
        pytest.param(NDJSON, _filled(b"{}\n"), 422, id="lines of empty jobs"),
        pytest.param(NDJSON, _filled(b"x"), 413, id="one long line"),
        pytest.param(NDJSON, b"x\n" * 10_000, 400, id="as many lines of nothing as may be"),
        pytest.param(JSON, b"[" + _filled(b"[],")[:-3] + b"]", 422, id="an array of empty arrays"),
        pytest.param(JSON, b"[" + _filled(b"{},")[:-3] + b"]", 422, id="an array of empty jobs"),
        pytest.param(JSON, b"[[" + _filled(b"{},")[:-3] + b"]", 413, id="an array of one long array"),
        pytest.param(JSON, _filled(b"["), 400, id="an array that is nested without end"),
        pytest.param(JSON, _filled(b" "), 400, id="spaces"),
        pytest.param(
            JSON, b"[" + b",".join([b'{"payload":[' + b"[]," * 20_000 + b"0]}"] * 500) + b"]", 422, id="values"
        ),
    ],
)
async def test_a_batch_that_is_no_batch_is_refused_without_a_long_step(
    attacker: Attacker, limits: BodyLimits, media_type: str, body: bytes, status: int
) -> None:
    async with steps_of_the_loop() as longest:
        answered, text = await attacker.post("/jobs:batch", media_type, body)
    assert answered == status, text
    assert json.loads(text)["detail"]
    assert longest[0] < LONGEST_STEP_SECONDS
    assert limits.held == 0
    assert (await attacker.caller.get("/jobs")).json() == []


async def test_a_batch_with_a_few_lines_that_are_not_json_keeps_the_others(admin: Caller) -> None:
    lines = ["x"] * MAX_MALFORMED + [json.dumps(JOB)]
    answer = await admin.post("/jobs:batch", content="\n".join(lines), headers={"Content-Type": NDJSON})
    assert answer.text.count('"status":400') == MAX_MALFORMED
    assert answer.text.count('"status":201') == 1


async def test_lines_of_a_batch_over_the_rate_are_refused_before_they_are_decoded(
    callers: Callers, connection: asyncpg.Connection
) -> None:
    tenant_id = await callers.tenant()
    await connection.execute("UPDATE tenants SET submit_burst = 10 WHERE tenant_id = $1", tenant_id)
    await stop_clock(connection)
    editor = await callers.make("editor", tenant_id)
    lines = [json.dumps(JOB)] * 10 + ["x"]
    answer = await editor.post("/jobs:batch", content="\n".join(lines), headers={"Content-Type": NDJSON})
    assert answer.text.count('"status":201') == 10
    assert json.loads(answer.text.splitlines()[-1])["quota"] == "submit_rate", "it is malformed, were it decoded"


async def test_a_job_over_the_rate_is_refused_before_it_is_decoded(
    callers: Callers, connection: asyncpg.Connection
) -> None:
    tenant_id = await callers.tenant()
    await connection.execute(
        "UPDATE tenants SET submits_per_second = 1, submit_burst = 1 WHERE tenant_id = $1", tenant_id
    )
    editor = await callers.make("editor", tenant_id)
    await stop_clock(connection)
    await editor.create()

    async def is_refused() -> bool:
        """A refusal is known for a second: a slow machine may take longer from one request to the next."""
        assert (await editor.post("/jobs", json=JOB)).status_code == 429
        answer = await editor.post("/jobs", content="{not json", headers={"Content-Type": JSON})
        return answer.status_code == 429 and answer.json()["quota"] == "submit_rate"

    await until(is_refused)


DENSE = b"[" + b"[]," * 349_000 + b"[]]"
JUST_DECODED = b"[" + b"[]," * 60_000 + b"[]]"


@pytest.mark.parametrize("payload", [DENSE, JUST_DECODED, b"[" + b"1.0," * 120_000 + b"9" * 99 + b"]"])
@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("/jobs", b'{"schedule":"manual","target":%b,"payload":%b}'),
        ("/outcomes", b'{"worker_id":"w","outcomes":[{"token":"1.1","result":"success","output":%.0b%b}]}'),
        ("/outcomes", b'{"worker_id":"w","outcomes":[{"token":"1.1","result":"unknown","output":%.0b%b}]}'),
        ("/queues/billing/lease", b'{"worker_id":"w","unknown":%.0b%b}'),
    ],
)
async def test_a_body_of_very_many_values_takes_no_long_step(
    attacker: Attacker, limits: BodyLimits, path: str, text: bytes, payload: bytes
) -> None:
    body = text % (json.dumps(TARGET).encode(), payload)
    assert len(body) <= MAX_BYTES
    async with steps_of_the_loop() as longest:
        status, answer = await attacker.post(path, JSON, body)
    assert status in {200, 422}, answer
    assert (b"has more than 131072 values" in answer) is (payload is DENSE)
    assert longest[0] < LONGEST_STEP_SECONDS
    assert limits.held == 0


@pytest.mark.parametrize(
    ("path", "text", "items"),
    [
        ("/workers/w/heartbeat", b'{"tokens":[%b]}', b'"1.1",' * 130_000 + b'"1.1"'),
        (
            "/outcomes",
            b'{"worker_id":"w","outcomes":[%b]}',
            b'{"token":"1.1","result":"success"},' * 29_000 + b"{}",
        ),
    ],
)
async def test_a_list_that_is_far_too_long_takes_no_long_step(
    attacker: Attacker, path: str, text: bytes, items: bytes
) -> None:
    async with steps_of_the_loop() as longest:
        status, answer = await attacker.post(path, JSON, text % items)
    assert status == 422
    assert b"has at most 10000 items" in answer
    assert longest[0] < LONGEST_STEP_SECONDS


def _worst_faults(number: int) -> str:
    """Fields that do not exist, each as short as it can be, beside a payload with faults deep below long names."""
    fields = ",".join(f'"{chr(97 + place % 26)}{place}":0' for place in range(50))
    return f'{{{fields},"n":{number}}}'


def _deep_faults(number: int) -> str:
    faults = ",".join(['"\\u0000"'] * 50)
    nested = "".join(f'{{"{"n" * 60}":' for _ in range(60))
    return f'{{"name":"{number}","payload":{nested}[{faults}]{"}" * 60}}}'


@pytest.mark.parametrize("worst", [_worst_faults, _deep_faults])
async def test_the_verdicts_on_a_batch_of_faults_are_not_much_longer_than_the_batch(
    attacker: Attacker, worst: Callable[[int], str]
) -> None:
    line = worst(1)
    lines = [worst(number) for number in range(900_000 // len(line))]
    body = "\n".join(lines).encode()
    async with steps_of_the_loop() as longest:
        status, answer = await attacker.post("/jobs:batch", NDJSON, body)
    assert status == 200
    verdicts = [json.loads(verdict) for verdict in answer.splitlines()]
    assert [verdict["status"] for verdict in verdicts] == [422] * len(lines)
    assert all(verdict["errors"] for verdict in verdicts)
    # The first fault of each line is there in any case: a pointer is no longer than what it points through.
    assert len(answer) < (FAULT_BYTES_PER_BYTE + 2) * len(body) + (FAULT_BYTES_PER_LINE + 512) * len(lines)
    assert longest[0] < LONGEST_STEP_SECONDS


async def test_an_unknown_field_with_a_long_name_is_not_repeated_in_full(admin: Caller) -> None:
    answer = await admin.post("/queues/billing/lease", json={"worker_id": "w", "x" * 500_000: 1})
    assert is_problem(answer, 422, "invalid-input")
    assert len(answer.content) < 2_000


def _begin(address: str, key: str | None, size: int) -> socket.socket:
    """A client that has sent all of a large batch that the server takes, but for its end."""
    place = urlsplit(address)
    client = socket.create_connection((place.hostname, place.port), timeout=1)
    job = b'{"payload":"%b"},' % (b"x" * 60_000)
    left = memoryview(_head(key, "/jobs:batch", JSON, size) + (b"[" + job * (size // len(job)))[: size - 1])
    with suppress(TimeoutError):
        while left:
            left = left[client.send(left) :]
    return client


async def test_slow_bodies_hold_no_more_memory_than_their_tenant_may(
    database_url: str, admin: Caller, tmp_path: Path
) -> None:
    with served(database_url, tmp_path / "log") as process, ExitStack() as opened:
        before = process.peak_memory
        begun = [_begin(process.address, admin.key, 31 * MEBIBYTE) for _ in range(20)]
        for client in begun:
            opened.enter_context(client)
        assert process.peak_memory - before < 200 * MEBIBYTE


async def test_a_tenant_has_few_batches_at_work_and_those_of_others_go_on(
    attacker: Attacker, limits: BodyLimits, callers: Callers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory_limits, "BATCH_WAIT_SECONDS", 0.1)
    other = Attacker(attacker.address, await callers.make("editor", await callers.tenant()))
    batch = json.dumps([{**JOB, "payload": "x" * 60_000}] * 2).encode()
    with ExitStack() as opened:
        for _ in range(memory_limits.MAX_BATCHES_PER_TENANT):
            opened.enter_context(await attacker.begin_batch(limits))
        status, text = await attacker.post("/jobs:batch", JSON, batch)
        assert (status, json.loads(text)["quota"]) == (429, "batches")
        assert (await attacker.post("/jobs:batch", JSON, json.dumps([JOB]).encode()))[0] == 200  # takes no turn
        assert (await other.post("/jobs:batch", JSON, batch))[0] == 200


async def test_a_client_that_hangs_up_in_the_middle_of_a_body_leaves_nothing_behind(
    attacker: Attacker, limits: BodyLimits, caplog: pytest.LogCaptureFixture
) -> None:
    async def is_released() -> bool:
        return limits.held == 0

    (await attacker.begin_batch(limits)).close()
    await until(is_released)
    assert not [record for record in caplog.records if record.exc_info]
