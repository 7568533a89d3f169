"""The two ends of HTTP in measurements, each a process of its own. Of a message only start, length and number count.

`python -m evertick.bench.http_processes receive HOSTS` is a webhook receiver on several hosts. It answers 204 to every
request and prints its URLs as one line of JSON. For each line on stdin it prints the number of requests so far. It ends
at the end of stdin.

`python -m evertick.bench.http_processes send PLAN`, where PLAN is JSON, sends many similar requests over persistent
connections. Requests are built before the clock starts. It prints the result as one line of JSON.
"""

import asyncio
import itertools
import json
import os
import sys
import time
from collections import Counter, deque
from collections.abc import Iterator
from typing import Any, cast
from urllib.parse import urlsplit

import uvloop

_END = b"\r\n\r\n"
_ANSWER = b"HTTP/1.1 204 No Content\r\n\r\n"
_LENGTH = b"\r\ncontent-length:"
_RANKS = {"p50": 0.5, "p95": 0.95, "p99": 0.99, "max": 1.0}


class MessageConnection(asyncio.Protocol):
    """Splits what arrives into messages."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's transports have another base class

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while (head_end := self._buffer.find(_END)) >= 0:
            head = bytes(self._buffer[:head_end])
            _, found, rest = head.lower().partition(_LENGTH)
            end = head_end + len(_END) + (int(rest.partition(b"\r\n")[0]) if found else 0)
            if len(self._buffer) < end:
                return
            del self._buffer[:end]
            self.message_received(head)

    def message_received(self, head: bytes) -> None:
        raise NotImplementedError


class ReceiverConnection(MessageConnection):
    """Answers each request and counts it."""

    def __init__(self, requests: Counter[str]) -> None:
        super().__init__()
        self._requests = requests

    def message_received(self, head: bytes) -> None:  # noqa: ARG002 - every request is answered alike
        self._requests["received"] += 1
        self._transport.write(_ANSWER)


async def receive(hosts: int) -> None:
    loop, requests = asyncio.get_running_loop(), Counter[str]()
    # One address for each: the dispatcher sees different hosts, each with its own slots.
    servers = [
        await loop.create_server(lambda: ReceiverConnection(requests), f"127.0.0.{1 + number % 254}", 0)
        for number in range(hosts)
    ]
    addresses = [server.sockets[0].getsockname() for server in servers]
    _print([f"http://{host}:{port}/" for host, port in addresses])
    while await asyncio.to_thread(sys.stdin.readline):
        _print(requests["received"])


class SenderConnection(MessageConnection):
    """Sends one request after the other, from a queue that all connections share."""

    def __init__(self, requests: deque[bytes], statuses: Counter[str], latencies: list[float]) -> None:
        super().__init__()
        self.done = asyncio.get_running_loop().create_future()
        self._requests = requests
        self._statuses = statuses
        self._latencies = latencies
        self._sent_at = 0.0

    def send(self) -> None:
        """Send the next request, or close the connection if none is left."""
        if not self._requests:
            self._transport.close()
            return
        self._sent_at = time.perf_counter()
        self._transport.write(self._requests.popleft())

    def message_received(self, head: bytes) -> None:
        self._latencies.append(time.perf_counter() - self._sent_at)
        self._statuses[head[9:12].decode("ascii", "replace")] += 1
        self.send()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.done.done():
            self.done.set_result(exc)


async def send(plan: dict[str, Any]) -> None:
    """Send all requests of a plan over concurrent connections. Prints duration, status counts and latencies."""
    address = urlsplit(plan["address"])
    requests = deque(_requests(plan, address.netloc))
    statuses: Counter[str] = Counter()
    latencies: list[float] = []
    loop = asyncio.get_running_loop()
    connections = [
        (
            await loop.create_connection(
                lambda: SenderConnection(requests, statuses, latencies), address.hostname, address.port
            )
        )[1]
        for _ in range(min(plan["connections"], len(requests)))
    ]
    began = time.perf_counter()
    for connection in connections:
        connection.send()
    await asyncio.gather(*(connection.done for connection in connections))
    seconds = time.perf_counter() - began
    _print({"seconds": seconds, "statuses": dict(statuses), "latency_ms": _percentiles(latencies)})


def _requests(plan: dict[str, Any], host: str) -> Iterator[bytes]:
    """Encoded requests with jobs of different names, `per_request` in each body."""
    head = (
        f"POST {plan['path']} HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {os.environ['EVERTICK_API_KEY']}\r\n"
        "Content-Type: application/json\r\nContent-Length: "
    ).encode()
    jobs = ({**plan["job"], "name": f"{plan['name']}-{number}"} for number in range(plan["jobs"]))
    while chunk := list(itertools.islice(jobs, plan["per_request"])):
        body = json.dumps(chunk[0] if plan["per_request"] == 1 else chunk).encode()
        yield head + str(len(body)).encode() + _END + body


def _percentiles(latencies: list[float]) -> dict[str, float] | None:
    ranked = sorted(latencies)
    if not ranked:
        return None
    last = len(ranked) - 1
    return {name: round(1000 * ranked[min(last, int(share * len(ranked)))], 2) for name, share in _RANKS.items()}


def _print(value: object) -> None:
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    role, argument = sys.argv[1:]
    uvloop.run(receive(int(argument)) if role == "receive" else send(json.loads(argument)))
