"""Deliveries share connections, and take turns at each host."""

import asyncio
from asyncio import StreamReader as Reader, StreamWriter as Writer

import pytest

from evertick.domain.attempt import Failed, NotStarted, Succeeded
from targets.receivers import LONG, OK, Log, attempt, delivering, read_request, serving


async def test_connections_are_used_again() -> None:
    async with serving(receiver := Log()) as port, delivering() as delivery:
        for _ in range(5):
            assert await delivery.deliver(attempt(f"http://receiver.test:{port}/"), LONG) == Succeeded("ok", 200)
    assert (receiver.connections, len(receiver.received)) == (1, 5)


async def test_cookies_are_not_kept_for_the_next_job() -> None:
    answer = b"HTTP/1.1 200 OK\r\nSet-Cookie: who=me\r\nContent-Length: 0\r\n\r\n"
    async with serving(receiver := Log(answer)) as port, delivering() as delivery:
        for _ in range(2):
            await delivery.deliver(attempt(f"http://receiver.test:{port}/"), LONG)
    assert len(receiver.received) == 2
    assert "cookie" not in receiver.received[1].headers


class Closing:
    """Answers `answers` requests on each connection and closes it at the next."""

    def __init__(self, answers: int) -> None:
        self._answers = answers
        self.connections = self.requests = 0

    async def __call__(self, reader: Reader, writer: Writer) -> None:
        self.connections += 1
        for _ in range(self._answers):
            await read_request(reader)
            self.requests += 1
            writer.write(OK)
        await read_request(reader)
        self.requests += 1


@pytest.mark.parametrize("method", ["POST", "PUT", "GET"])
async def test_a_kept_connection_that_closes_under_us_burns_no_attempt(method: str) -> None:
    async with serving(receiver := Closing(1)) as port, delivering() as delivery:
        sent = attempt(f"http://receiver.test:{port}/", method=method)
        for _ in range(2):
            assert isinstance(await delivery.deliver(sent, LONG), Succeeded)
    assert (receiver.connections, receiver.requests) == (2, 3)


@pytest.mark.parametrize("method", ["POST", "PUT", "GET"])
async def test_a_new_connection_that_closes_is_a_failure_and_is_not_tried_twice(method: str) -> None:
    async with serving(receiver := Closing(0)) as port, delivering() as delivery:
        outcome = await delivery.deliver(attempt(f"http://receiver.test:{port}/", method=method), LONG)
    assert outcome == Failed("the connection was closed before an answer came")
    assert (receiver.connections, receiver.requests) == (1, 1)


async def test_beyond_so_many_open_connections_none_is_kept() -> None:
    async with serving(Log()) as port, delivering(most_open=2) as delivery:
        for number in range(5):
            await delivery.deliver(attempt(f"http://receiver-{number}.test:{port}/"), LONG)
            await asyncio.sleep(0)  # sockets are closed in the loop's next turn
        assert delivery.connections.open == 2


async def test_a_kept_connection_is_used_again_however_many_are_open() -> None:
    async with serving(receiver := Log()) as port, delivering(most_open=1) as delivery:
        for _ in range(3):
            await delivery.deliver(attempt(f"http://receiver.test:{port}/"), LONG)
    assert (receiver.connections, len(receiver.received)) == (1, 3)


async def test_connections_that_are_gone_are_not_counted() -> None:
    answer = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
    async with serving(Log(answer)) as port, delivering() as delivery:
        for _ in range(3):
            await delivery.deliver(attempt(f"http://receiver.test:{port}/"), LONG)
            await asyncio.sleep(0)  # sockets are closed in the loop's next turn
        assert (delivery.connections.open, delivery.connections.idle) == (0, {})


class Gate:
    """Answers nobody before it is opened, and knows how many wait."""

    def __init__(self) -> None:
        self.opened = asyncio.Event()
        self.arrived = asyncio.Semaphore(0)
        self.waiting = self.most = 0

    async def __call__(self, reader: Reader, writer: Writer) -> None:
        while True:
            await read_request(reader)
            self.waiting += 1
            self.most = max(self.most, self.waiting)
            self.arrived.release()
            await self.opened.wait()
            self.waiting -= 1
            writer.write(OK)


async def test_a_host_gets_so_many_deliveries_at_once_and_the_others_take_turns() -> None:
    async with serving(gate := Gate()) as port, delivering(per_host=3) as delivery, asyncio.TaskGroup() as tasks:
        url = f"http://receiver.test:{port}/"
        deliveries = [tasks.create_task(delivery.deliver(attempt(url), LONG)) for _ in range(10)]
        for _ in range(3):
            await gate.arrived.acquire()
        gate.opened.set()
        outcomes = [await each for each in deliveries]
    assert outcomes == [Succeeded("ok", 200)] * 10
    assert gate.most == 3
    assert len(delivery.slots) == 0


async def test_who_gets_no_turn_is_not_tried_and_others_are_unaffected() -> None:
    async with (
        serving(gate := Gate()) as port,
        delivering(per_host=1, host_wait_seconds=0.05) as delivery,
        asyncio.TaskGroup() as tasks,
    ):
        first = tasks.create_task(delivery.deliver(attempt(f"http://busy.test:{port}/"), LONG))
        await gate.arrived.acquire()
        second = await delivery.deliver(attempt(f"http://busy.test:{port}/"), LONG)
        third = tasks.create_task(delivery.deliver(attempt(f"http://free.test:{port}/"), LONG))
        await gate.arrived.acquire()
        gate.opened.set()
    assert isinstance(second, NotStarted)
    assert isinstance(await first, Succeeded)
    assert isinstance(await third, Succeeded)


async def test_a_cancelled_delivery_gives_back_its_slot_and_closes_its_connection() -> None:
    async with serving(gate := Gate()) as port, delivering(per_host=1) as delivery:
        url = f"http://receiver.test:{port}/"
        stopped = asyncio.create_task(delivery.deliver(attempt(url), LONG))
        await gate.arrived.acquire()
        stopped.cancel()
        await asyncio.gather(stopped, return_exceptions=True)
        assert len(delivery.slots) == 0
        gate.opened.set()
        assert isinstance(await delivery.deliver(attempt(url), LONG), Succeeded)
        assert delivery.connections.open == 1


async def test_a_refusing_answer_is_kept_in_part() -> None:
    answer = b"HTTP/1.1 422 Unprocessable\r\nContent-Length: 8\r\n\r\nno\x00thank"
    async with serving(Log(answer)) as port, delivering() as delivery:
        outcome = await delivery.deliver(attempt(f"http://receiver.test:{port}/"), LONG)
    assert isinstance(outcome, Failed)
    assert (outcome.code, outcome.excerpt, outcome.retryable) == (422, "no\ufffdthank", False)
