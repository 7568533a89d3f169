"""A webhook receiver that answers 204 to every request, on several hosts, and counts requests.

A process of its own: `python -m evertick.bench.receiver HOSTS`. It prints its URLs as one line of JSON. For each line
on stdin it prints the number of requests so far. It ends at the end of stdin.
"""

import asyncio
import json
import sys
from typing import cast

import uvloop

_END = b"\r\n\r\n"
_ANSWER = b"HTTP/1.1 204 No Content\r\n\r\n"


class RequestCounter:
    """The number of requests."""

    def __init__(self) -> None:
        self.count = 0


class ReceiverProtocol(asyncio.Protocol):
    """One connection: reads requests and answers each of them."""

    def __init__(self, requests: RequestCounter) -> None:
        self._requests = requests
        self._buffer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's transports have another base class

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while (head_end := self._buffer.find(_END)) >= 0:
            end = head_end + len(_END) + _content_length(self._buffer[:head_end].lower())
            if len(self._buffer) < end:
                return
            self._buffer = self._buffer[end:]
            self._requests.count += 1
            self._transport.write(_ANSWER)


def _content_length(head: bytes) -> int:
    _, found, rest = head.partition(b"\r\ncontent-length:")
    return int(rest.partition(b"\r\n")[0]) if found else 0


async def receive(hosts: int) -> None:
    loop, requests = asyncio.get_running_loop(), RequestCounter()
    # One address for each: the dispatcher sees different hosts, each with its own slots.
    servers = [
        await loop.create_server(lambda: ReceiverProtocol(requests), f"127.0.0.{1 + number % 254}", 0)
        for number in range(hosts)
    ]
    addresses = [server.sockets[0].getsockname() for server in servers]
    _print([f"http://{host}:{port}/" for host, port in addresses])
    while await asyncio.to_thread(sys.stdin.readline):
        _print(requests.count)


def _print(value: object) -> None:
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    uvloop.run(receive(int(sys.argv[1])))
