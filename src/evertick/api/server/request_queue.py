"""The order in which requests begin: a few in each turn of the event loop, round-robin among clients.

Without it, all requests that arrive together begin together, and each step of one waits for a step of all the others:
a thousand refusals at once delay every other response, and the probes, for seconds.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Hashable

STARTS_PER_TURN = 8
"""A turn of the loop with so many takes a few milliseconds."""


class RequestQueue:
    """Requests that have arrived and not begun, by client."""

    def __init__(self) -> None:
        self._waiting: dict[Hashable, deque[Callable[[], None]]] = {}
        self._left = STARTS_PER_TURN
        self._is_turn_due = False

    def start(self, begin: Callable[[], None], client: Callable[[], Hashable]) -> None:
        """Begin a request now, or when it is its client's turn. `client` is called only if the request has to wait."""
        if self._left:
            self._left -= 1
            begin()
        else:
            self._waiting.setdefault(client(), deque()).append(begin)
        if not self._is_turn_due:
            self._is_turn_due = True
            asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        self._is_turn_due = False
        self._left = STARTS_PER_TURN
        while self._left and self._waiting:
            client, requests = next(iter(self._waiting.items()))
            begin = requests.popleft()
            del self._waiting[client]
            if requests:
                self._waiting[client] = requests  # behind the others
            self._left -= 1
            begin()
        if self._left < STARTS_PER_TURN:
            self._is_turn_due = True
            asyncio.get_running_loop().call_soon(self._turn)
