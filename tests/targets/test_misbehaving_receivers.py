"""Receivers that hang, drip, flood, lie or break: the deadline holds, memory stays flat, neighbours notice nothing."""

import asyncio
import gzip
import socket
import struct
import tracemalloc
from asyncio import StreamReader as Reader, StreamWriter as Writer
from contextlib import suppress
from itertools import count

import pytest

from evertick.domain.attempt import AttemptOutcome, Failed, Succeeded
from evertick.domain.states import Outcome
from evertick.targets.http.delivery import READ_BYTES
from targets.receivers import LONG, OK, Log, attempt, deliver_to, delivering, read_request, serving

SOON = 0.3
FLAT_BYTES = 8_000_000
"""Far more than one answer costs, far less than any flood below carries."""
HEAD = b"HTTP/1.1 200 OK\r\n"


def is_timeout(outcome: AttemptOutcome) -> bool:
    return isinstance(outcome, Failed) and outcome.result is Outcome.TIMED_OUT and outcome.retryable


async def forever() -> None:
    await asyncio.Event().wait()


async def flood(writer: Writer, piece: bytes) -> int:
    """Write until the other side is gone; returns how much that was."""
    with suppress(ConnectionError):
        for written in count(len(piece), len(piece)):
            writer.write(piece)
            await writer.drain()
            if writer.is_closing() or written > 2**30:
                return written
    return 0


@pytest.mark.parametrize(
    "beginning",
    [
        b"",
        b"HT",
        HEAD,
        HEAD + b"X-Half: a hea",
        HEAD + b"Content-Length: 100\r\n\r\nhalf of the bo",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n",
        HEAD + b"\r\nuntil the connection ends",
    ],
)
async def test_a_receiver_that_hangs_anywhere_is_given_up_at_the_deadline(beginning: bytes) -> None:
    async def hang(reader: Reader, writer: Writer) -> None:
        writer.write(beginning)
        await forever()

    assert is_timeout(await deliver_to(hang, SOON))


async def test_a_receiver_that_never_accepts_is_given_up_at_the_deadline() -> None:
    loop = asyncio.get_running_loop()
    with socket.create_server(("127.0.0.1", 0), backlog=0) as server:
        callers = [socket.socket() for _ in range(4)]  # they fill the backlog; further ones are not even connected
        for caller in callers:
            caller.setblocking(False)
            with suppress(TimeoutError):
                async with asyncio.timeout(0.2):
                    await loop.sock_connect(caller, server.getsockname())
        async with delivering() as delivery, asyncio.timeout(LONG):
            outcome = await delivery.deliver(attempt(f"http://127.0.0.1:{server.getsockname()[1]}/"), SOON)
        for caller in callers:
            caller.close()
    assert is_timeout(outcome)


async def test_a_name_server_that_hangs_is_given_up_at_the_deadline() -> None:
    async def resolve(_: str) -> list[str]:
        await forever()
        return []

    async with delivering(resolve=resolve) as delivery, asyncio.timeout(LONG):
        assert is_timeout(await delivery.deliver(attempt("http://receiver.test/"), SOON))


@pytest.mark.parametrize("beginning", [HEAD + b"X-Slow: ", HEAD + b"Content-Length: 1000000\r\n\r\n"])
async def test_dripping_bytes_do_not_move_the_deadline(beginning: bytes) -> None:
    async def drip(reader: Reader, writer: Writer) -> None:
        writer.write(beginning)
        while not writer.is_closing():
            writer.write(b"a")
            await asyncio.sleep(0.01)

    assert is_timeout(await deliver_to(drip, SOON))


async def _deliver_measured(head: bytes, piece: bytes, deadline_seconds: float) -> tuple[AttemptOutcome, int]:
    async def handle(reader: Reader, writer: Writer) -> None:
        await read_request(reader)
        writer.write(head)
        await flood(writer, piece)

    tracemalloc.start()
    try:
        outcome = await deliver_to(handle, deadline_seconds)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    return outcome, peak


@pytest.mark.parametrize(
    ("head", "piece"),
    [
        pytest.param(HEAD, b"X-More: and more\r\n" * 50, id="many headers"),
        pytest.param(HEAD + b"X-Long: ", b"a" * 1000, id="one long header"),
        pytest.param(HEAD + b"X", b"x" * 1000, id="one long header name"),
        pytest.param(b"HTTP/1.1 200 ", b"OK" * 500, id="a long reason"),
        pytest.param(b"", b"\x00" * 1000, id="not HTTP"),
    ],
)
async def test_endless_headers_are_cut_off(head: bytes, piece: bytes) -> None:
    outcome, peak = await _deliver_measured(head, piece, LONG)
    assert isinstance(outcome, Failed)
    assert outcome.result is Outcome.FAILED
    assert outcome.retryable
    assert peak < FLAT_BYTES


async def test_endless_interim_answers_end_at_the_deadline() -> None:
    outcome, peak = await _deliver_measured(b"", b"HTTP/1.1 103 Early Hints\r\n\r\n" * 20, SOON)
    assert is_timeout(outcome)
    assert peak < FLAT_BYTES


async def test_endless_trailers_are_cut_off() -> None:
    head = HEAD + b"Transfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n"
    outcome, peak = await _deliver_measured(head, b"X-More: and more\r\n" * 50, SOON)
    assert isinstance(outcome, Failed)
    assert peak < FLAT_BYTES


@pytest.mark.parametrize("head", [b"Content-Length: 1073741824\r\n\r\n", b"\r\n"])
async def test_of_a_gigabyte_only_the_beginning_is_read(head: bytes) -> None:
    outcome, peak = await _deliver_measured(HEAD + head, b"a" * 65_536, LONG)
    assert outcome == Succeeded("a" * 1024, 200)
    assert peak < FLAT_BYTES


async def test_a_body_that_is_too_long_costs_its_sender_the_connection() -> None:
    sent: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def handle(reader: Reader, writer: Writer) -> None:
        await read_request(reader)
        writer.write(HEAD + b"Content-Length: 1073741824\r\n\r\n")
        sent.set_result(await flood(writer, b"a" * 65_536))

    async with serving(handle) as port, delivering() as delivery, asyncio.timeout(LONG):
        await delivery.deliver(attempt(f"http://receiver.test:{port}/"), LONG)
        assert await sent < 2**30
        assert delivery.connections.open == 0


async def test_an_answer_as_long_as_we_read_is_kept_whole() -> None:
    body = b"a" * (READ_BYTES - 1)
    answer = HEAD + b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
    async with serving(receiver := Log(answer)) as port, delivering() as delivery:
        for _ in range(2):
            assert isinstance(await delivery.deliver(attempt(f"http://receiver.test:{port}/"), LONG), Succeeded)
    assert receiver.connections == 1


async def test_a_gzip_bomb_is_not_unpacked() -> None:
    bomb = gzip.compress(bytes(50_000_000), mtime=0)
    head = HEAD + b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(bomb)
    outcome, peak = await _deliver_measured(head, bomb, LONG)
    assert isinstance(outcome, Succeeded)
    assert (outcome.excerpt or "").startswith("\x1f\ufffd\x08")
    assert peak < FLAT_BYTES


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"garbage\r\n\r\n",
        b"HTTP/9.9 200 OK\r\n\r\n",
        b"HTTP/1.1 abc OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
        b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nshort",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffffffff\r\n",
        b"HTTP/1.1 200 OK\r\n\xff\xfe: \x00\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\nhello",
    ],
)
async def test_broken_answers_are_failures_that_may_pass(answer: bytes) -> None:
    async def handle(reader: Reader, writer: Writer) -> None:
        await read_request(reader)
        writer.write(answer)
        await writer.drain()
        writer.close()
        await writer.wait_closed()

    outcome = await deliver_to(handle)
    assert isinstance(outcome, Failed)
    assert outcome.retryable


@pytest.mark.parametrize("after", [b"", HEAD, HEAD + b"Content-Length: 10\r\n\r\nhal"])
async def test_a_reset_is_a_failure_that_may_pass(after: bytes) -> None:
    async def reset(reader: Reader, writer: Writer) -> None:
        await read_request(reader)
        writer.write(after)
        await writer.drain()
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()

    outcome = await deliver_to(reset)
    assert isinstance(outcome, Failed)
    assert outcome.retryable
    assert "127.0.0.1" not in outcome.error


async def test_nobody_at_home_is_a_failure_that_may_pass() -> None:
    async with serving(Log()) as port:
        pass
    async with delivering() as delivery:
        outcome = await delivery.deliver(attempt(f"http://127.0.0.1:{port}/"), LONG)
    assert outcome == Failed("the connection was refused")


async def test_a_name_that_is_unknown_is_a_failure_that_may_pass() -> None:
    async def resolve(_: str) -> list[str]:
        raise socket.gaierror(socket.EAI_NONAME, "unknown")

    async with delivering(resolve=resolve) as delivery:
        assert await delivery.deliver(attempt("http://unknown.test/"), LONG) == Failed(
            "the host's name cannot be resolved"
        )


async def test_many_slow_hosts_do_not_delay_a_fast_one() -> None:
    arrived = asyncio.Semaphore(0)

    async def hang(reader: Reader, writer: Writer) -> None:
        await read_request(reader)
        arrived.release()
        await forever()

    async def resolve(name: str) -> list[str]:
        if name.startswith("lost"):
            await forever()
        return ["127.0.0.1"]

    async with serving(hang) as slow, serving(Log(OK)) as fast, delivering(resolve=resolve) as delivery:
        urls = [f"http://slow-{n}.test:{slow}/" for n in range(100)] + [f"http://lost-{n}.test/" for n in range(50)]
        stuck = [asyncio.create_task(delivery.deliver(attempt(url), LONG)) for url in urls]
        for _ in range(100):
            await arrived.acquire()
        outcomes = [await delivery.deliver(attempt(f"http://fast.test:{fast}/"), LONG) for _ in range(20)]
        assert not any(task.done() for task in stuck)
        for task in stuck:
            task.cancel()
        await asyncio.gather(*stuck, return_exceptions=True)
    assert all(isinstance(outcome, Succeeded) for outcome in outcomes)
