"""Sends many similar HTTP requests over persistent connections, and counts the responses.

Requests are built before the clock starts. Of a response only status and length are read. A process of its own:
`python -m evertick.bench.load_generator PLAN`, where PLAN is JSON. It prints the result as one line of JSON.
"""

import asyncio
import json
import os
import sys
import time
from collections import Counter, deque
from collections.abc import Iterable
from typing import Any, cast
from urllib.parse import urlsplit

import uvloop

_END = b"\r\n\r\n"


class ClientConnection(asyncio.Protocol):
    """Sends one request after the other, from a queue that all connections share."""

    def __init__(self, requests: deque[bytes], statuses: Counter[str], latencies: list[float]) -> None:
        self.done = asyncio.get_running_loop().create_future()
        self._requests = requests
        self._statuses = statuses
        self._latencies = latencies
        self._buffer = bytearray()
        self._sent_at = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's transports have another base class

    def send(self) -> None:
        """Send the next request, or close the connection if none is left."""
        if not self._requests:
            self._transport.close()
            return
        self._sent_at = time.perf_counter()
        self._transport.write(self._requests.popleft())

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        head_end = self._buffer.find(_END)
        if head_end < 0:
            return
        length = _content_length(bytes(self._buffer[:head_end]))
        if len(self._buffer) < head_end + len(_END) + length:
            return
        self._latencies.append(time.perf_counter() - self._sent_at)
        self._statuses[self._buffer[9:12].decode("ascii", "replace")] += 1
        self._buffer.clear()
        self.send()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.done.done():
            self.done.set_result(exc)


def _content_length(head: bytes) -> int:
    for line in head.split(b"\r\n")[1:]:
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            return int(value)
    return 0


def requests_of(address: str, key: str, path: str, bodies: Iterable[bytes]) -> deque[bytes]:
    """Encoded requests."""
    host = urlsplit(address).netloc
    head = (
        f"POST {path} HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {key}\r\n"
        "Content-Type: application/json\r\nContent-Length: "
    ).encode()
    return deque(head + str(len(body)).encode() + _END + body for body in bodies)


async def send_all(address: str, requests: deque[bytes], connections: int) -> dict[str, Any]:
    """Send all requests over concurrent connections. Returns duration, status counts and latencies."""
    parts = urlsplit(address)
    assert parts.hostname is not None
    assert parts.port is not None
    host, port = parts.hostname, parts.port
    statuses: Counter[str] = Counter()
    latencies: list[float] = []
    loop = asyncio.get_running_loop()
    opened = [
        (await loop.create_connection(lambda: ClientConnection(requests, statuses, latencies), host, port))[1]
        for _ in range(min(connections, len(requests)))
    ]
    began = time.perf_counter()
    for connection in opened:
        connection.send()
    await asyncio.gather(*(connection.done for connection in opened))
    return {"seconds": time.perf_counter() - began, "statuses": dict(statuses), **_percentiles(latencies)}


def _percentiles(latencies: list[float]) -> dict[str, Any]:
    """Percentiles of the latencies of all responses."""
    if not latencies:
        return {"latency_ms": None}
    ranked = sorted(latencies)
    ranks = {"p50": 0.5, "p95": 0.95, "p99": 0.99, "max": 1.0}
    return {
        "latency_ms": {
            name: round(1000 * ranked[min(len(ranked) - 1, int(share * len(ranked)))], 2)
            for name, share in ranks.items()
        }
    }


def _bodies(plan: dict[str, Any]) -> Iterable[bytes]:
    """Jobs with different names, `per_request` in each body."""
    jobs = ({**plan["job"], "name": f"{plan['name']}-{number}"} for number in range(plan["jobs"]))
    if plan["per_request"] == 1:
        return (json.dumps(job).encode() for job in jobs)
    every = list(jobs)
    size = plan["per_request"]
    return (json.dumps(every[start : start + size]).encode() for start in range(0, len(every), size))


def main() -> None:
    plan = json.loads(sys.argv[1])
    requests = requests_of(plan["address"], os.environ["EVERTICK_API_KEY"], plan["path"], _bodies(plan))
    result = uvloop.run(send_all(plan["address"], requests, plan["connections"]))
    sys.stdout.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
