"""Requests begin a few at a time, in turn among clients, and in the order in which each client sent them."""

import asyncio
from collections.abc import Callable

from evertick.api.server.connection_limits import STARTS_PER_TURN, RequestQueue

MANY = 10 * STARTS_PER_TURN


async def _turns(queue: RequestQueue, begun: list[str]) -> list[list[str]]:
    """What began in each turn of the loop, from now on until nothing does."""
    seen = len(begun)
    turns: list[list[str]] = []
    while True:
        await asyncio.sleep(0)
        if len(begun) == seen:
            return turns
        turns.append(begun[seen:])
        seen = len(begun)


def _sender(queue: RequestQueue, begun: list[str]) -> Callable[[str], None]:
    def send(name: str) -> None:
        queue.start(lambda: begun.append(name), lambda: name[0])

    return send


async def test_a_request_begins_at_once_when_few_come() -> None:
    begun: list[str] = []
    send = _sender(RequestQueue(), begun)
    send("a1")
    assert begun == ["a1"]


async def test_so_many_begin_in_one_turn_of_the_loop_and_none_is_forgotten() -> None:
    begun: list[str] = []
    queue = RequestQueue()
    send = _sender(queue, begun)
    for number in range(MANY):
        send(f"a{number}")
    assert len(begun) == STARTS_PER_TURN
    turns = await _turns(queue, begun)
    assert {len(turn) for turn in turns} == {STARTS_PER_TURN}
    assert begun == [f"a{number}" for number in range(MANY)]


async def test_a_client_does_not_wait_for_all_requests_of_another() -> None:
    begun: list[str] = []
    queue = RequestQueue()
    send = _sender(queue, begun)
    for number in range(MANY):
        send(f"a{number}")
    send("b")
    turns = await _turns(queue, begun)
    assert "b" in turns[0]
