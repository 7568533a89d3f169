"""What a tenant gets to see or to do that it should not, and what strangers leave in the log."""

import asyncio
import json
import re
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from engine import until
from hostile.attacks.context import ATTACKER, AttackContext
from hostile.server import Server, up


@pytest.fixture
async def server(database_url: str, tmp_path: Path) -> AsyncIterator[Server]:
    async with up(tmp_path, "--database-url", database_url) as server:
        yield server


async def _key(server: Server, admin_key: str, role: str) -> tuple[str, str]:
    async with server.client(admin_key) as admin:
        made = (await admin.post("/api-keys", json={"role": role})).json()
    return made["key_id"], made["api_key"]


async def test_a_key_that_was_revoked_gets_no_work_any_more(server: Server) -> None:
    """Not even by a long poll that it began before."""
    admin_key = await server.tenant("tenant")
    key_id, secret = await _key(server, admin_key, "worker")
    asked = {"worker_id": "w", "wait_seconds": 30}
    job = {"schedule": "now", "target": {"type": "worker", "queue": "queue", "handler": "handle"}}

    async def is_waiting() -> bool:
        async with server.client() as client:
            text = (await client.get(f"{server.address}/metrics")).text
        return bool(re.search(r"^evertick_long_polls 1\.0$", text, re.MULTILINE))

    async with server.client(admin_key) as admin, server.client(secret) as worker:
        polling = asyncio.create_task(worker.post("/queues/queue/lease", json=asked))
        await until(is_waiting)
        assert (await admin.delete(f"/api-keys/{key_id}")).status_code == 204
        assert (await admin.post("/jobs", json=job)).status_code == 201
        answer = await polling
        assert answer.status_code == 401 or answer.json()["attempts"] == []
        found = await admin.post("/queues/queue/lease", json={"worker_id": "another", "wait_seconds": 20})
    assert len(found.json()["attempts"]) == 1


async def test_clients_that_hang_up_leave_no_traceback(server: Server) -> None:
    """Before a head has ended, in a body, while they wait for an answer."""
    key = await server.tenant("tenant")
    context = AttackContext(server.address, [key], "")
    poll = json.dumps({"worker_id": "w", "wait_seconds": 20}).encode()
    preview = b'{"schedule": "0 9 * * 1"}'
    begun = [
        b"POST /api/v1/jobs HTTP/1.1\r\nHost: x\r\n",
        context.head("POST", "/api/v1/jobs", key, Content_Length=100) + b'{"schedule"',
        context.head("POST", "/api/v1/jobs:batch", key, Content_Length=100) + b'[{"schedule"',
        context.head("POST", "/api/v1/jobs", Content_Length=100) + b'{"schedule"',
        context.head("POST", "/api/v1/queues/q/lease", key, Content_Length=len(poll)) + poll,
        context.head("POST", "/api/v1/schedules/preview", key, Content_Length=len(preview)) + preview,
    ]
    for sent in begun * 3:
        async with context.connection() as (_, writer):
            writer.write(sent)
            writer.close()  # in order, so that the server reads all of it before it sees the end
            await writer.wait_closed()

    async def are_gone() -> bool:
        return not await _is_connected(server)

    await until(are_gone)
    async with server.client() as client:  # what was logged was logged before this answer
        assert (await client.get(f"{server.address}/livez")).status_code == 200
    assert "Traceback" not in server.log


async def _is_connected(server: Server) -> bool:
    return server.connections_from(ATTACKER) > 0


async def test_a_tenant_does_not_learn_on_which_machine_the_server_runs(server: Server) -> None:
    _, viewer_key = await _key(server, await server.tenant("tenant"), "viewer")
    async with server.client(viewer_key) as viewer, server.client() as host:
        seen = (await viewer.get("/cluster")).text
        (node,) = (await host.get("/cluster")).json()["nodes"]
    machine = f"{socket.gethostname()}-{server.process.pid}"
    assert machine in node["node"]
    assert machine not in seen
