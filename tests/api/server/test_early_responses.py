"""Answers that are known before a request's body has been read: they arrive, though the client sends it all first."""

import asyncio
import socket
from contextlib import suppress
from urllib.parse import urlsplit

import pytest

from api.callers import Caller
from engine import PATIENCE_SECONDS
from evertick.api.bodies import request_body
from evertick.api.bodies.request_body import MAX_BATCH_BYTES, MAX_BYTES
from evertick.api.server import ApiServer

FINAL_CHUNK = b"0\r\n\r\n"


def _head(path: str, *headers: str) -> bytes:
    return "\r\n".join([f"POST /api/v1{path} HTTP/1.1", "Host: x", *headers, "", ""]).encode()


def _chunked(body: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(body), body) + FINAL_CHUNK


def _all_sent_then_read(address: str, request: bytes) -> bytes:
    """What arrives until the server closes, for a client that sends everything before it reads anything."""
    place = urlsplit(address)
    with socket.create_connection((place.hostname, place.port), timeout=PATIENCE_SECONDS) as client:
        client.sendall(request)
        return b"".join(iter(lambda: client.recv(65536), b""))


@pytest.mark.parametrize("connection", ["close", "keep-alive"])
async def test_a_body_of_a_byte_too_many_is_told_so_and_not_reset(
    server: ApiServer, admin: Caller, connection: str
) -> None:
    size = MAX_BYTES + 1
    headers = (f"Authorization: Bearer {admin.key}", f"Connection: {connection}", f"Content-Length: {size}")
    answer = await asyncio.to_thread(_all_sent_then_read, server.address, _head("/jobs", *headers) + b"x" * size)
    assert answer.startswith(b"HTTP/1.1 413")
    assert b"connection: close" in answer
    assert answer.endswith(b"}")


async def test_a_batch_of_a_byte_too_many_in_chunks_is_told_so_and_not_reset(server: ApiServer, admin: Caller) -> None:
    headers = (f"Authorization: Bearer {admin.key}", "Connection: close", "Transfer-Encoding: chunked")
    request = _head("/jobs:batch", *headers) + _chunked(b" " * (MAX_BATCH_BYTES + 1))
    answer = await asyncio.to_thread(_all_sent_then_read, server.address, request)
    assert answer.startswith(b"HTTP/1.1 413")
    assert answer.endswith(b"}")


async def test_who_has_no_key_is_told_so_whatever_was_sent_along(server: ApiServer) -> None:
    request = _head("/jobs", "Connection: close", f"Content-Length: {MAX_BYTES}") + b"x" * MAX_BYTES
    answer = await asyncio.to_thread(_all_sent_then_read, server.address, request)
    assert answer.startswith(b"HTTP/1.1 401")
    assert answer.endswith(b"}")


async def test_a_body_without_end_and_key_is_not_read_much_longer_than_a_job(
    server: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_body, "DRAIN_SECONDS", 2 * PATIENCE_SECONDS)
    place = urlsplit(server.address)
    reader, writer = await asyncio.open_connection(place.hostname, place.port)
    writer.write(_head("/jobs", f"Content-Length: {2**40}"))
    async with asyncio.timeout(PATIENCE_SECONDS):
        assert (await reader.readline()).startswith(b"HTTP/1.1 401")
        sent = 0
        with suppress(ConnectionError):  # closed in the middle of it
            while True:
                writer.write(b"x" * 65536)
                await writer.drain()
                sent += 65536
    writer.close()
    assert sent < request_body.DRAIN_BYTES // 2  # more than is drained waits in buffers


async def test_a_body_that_does_not_go_on_does_not_hold_its_connection(
    server: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_body, "DRAIN_SECONDS", 0.1)
    place = urlsplit(server.address)
    reader, writer = await asyncio.open_connection(place.hostname, place.port)
    writer.write(_head("/jobs", "Content-Length: 100"))
    async with asyncio.timeout(PATIENCE_SECONDS):
        assert (await reader.read()).startswith(b"HTTP/1.1 401")
    writer.close()


async def test_an_answer_after_the_whole_body_keeps_the_connection(admin: Caller) -> None:
    answer = await admin.post("/jobs", content=b"{}", headers={"Content-Type": "application/json"})
    assert answer.status_code == 422
    assert "connection" not in answer.headers
