"""A receiver of webhooks that answers 204 to whatever comes, on as many hosts as wanted, and counts.

Run as a process of its own: `python -m evertick.bench.receiver HOSTS`. It prints where it listens as one line of JSON
and, for each line that it is sent, how many requests came until then; it ends with its input.
"""

import asyncio
import json
import sys
from typing import cast

import uvloop

_END = b"\r\n\r\n"
_ANSWER = b"HTTP/1.1 204 No Content\r\n\r\n"


class Visits:
    """How many requests came."""

    def __init__(self) -> None:
        self.count = 0


class Reception(asyncio.Protocol):
    """One connection: reads a head and as many bytes as it announces, and answers."""

    def __init__(self, visits: Visits) -> None:
        self._visits = visits
        self._buffer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's are none by their class

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while (head_end := self._buffer.find(_END)) >= 0:
            end = head_end + len(_END) + _content_length(self._buffer[:head_end].lower())
            if len(self._buffer) < end:
                return
            self._buffer = self._buffer[end:]
            self._visits.count += 1
            self._transport.write(_ANSWER)


def _content_length(head: bytes) -> int:
    _, found, rest = head.partition(b"\r\ncontent-length:")
    return int(rest.partition(b"\r\n")[0]) if found else 0


async def receive(hosts: int) -> None:
    loop, visits = asyncio.get_running_loop(), Visits()
    # Addresses of their own: to a sender each is a host with slots of its own.
    servers = [
        await loop.create_server(lambda: Reception(visits), f"127.0.0.{1 + number % 254}", 0) for number in range(hosts)
    ]
    places = [server.sockets[0].getsockname() for server in servers]
    _say([f"http://{host}:{port}/" for host, port in places])
    while await asyncio.to_thread(sys.stdin.readline):
        _say(visits.count)


def _say(value: object) -> None:
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    uvloop.run(receive(int(sys.argv[1])))
