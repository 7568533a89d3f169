"""What leaves rows behind: kept answers, versions, keys, queues, entries in the audit log."""

import asyncio
import itertools
import secrets
from collections.abc import Awaitable, Callable
from typing import Any

import httpx

from hostile.attacks.scene import Scene, again_and_again

LARGE = {"text": secrets.token_hex(24_500)}
"""Random, so that it cannot be stored in less."""
ACCEPTED_LATE = "accepted after a refusal"


async def kept_answers(scene: Scene) -> None:
    """`pause` of a large job, each time under another idempotency key."""

    async def act(client: httpx.AsyncClient, job: dict[str, Any]) -> httpx.Response:
        headers = {"Idempotency-Key": secrets.token_hex(8)}
        return await client.post(f"/jobs/{job['job_id']}/pause", json={}, headers=headers)

    await _with_job(scene, act)


async def versions(scene: Scene) -> None:
    """Edits of a large job."""
    numbers = itertools.count()

    async def act(client: httpx.AsyncClient, job: dict[str, Any]) -> httpx.Response:
        return await client.patch(f"/jobs/{job['job_id']}", json={"payload": {**LARGE, "number": next(numbers)}})

    await _with_job(scene, act)


async def queues_and_rules(scene: Scene) -> None:
    """Jobs with queues and schedules of their own, deleted at once."""
    numbers = itertools.count()

    async def act(client: httpx.AsyncClient, job: dict[str, Any]) -> httpx.Response:
        number = next(numbers)
        target = {"type": "worker", "queue": f"queue-{number}", "handler": "none"}
        schedule = f"{number % 60} {number // 60 % 60} {number // 3600 % 24} * * *"
        answer = await client.post("/jobs", json={"schedule": schedule, "target": target})
        if answer.status_code == 201:
            await client.delete(f"/jobs/{answer.json()['job_id']}")
        return answer

    await _with_job(scene, act)


async def api_keys(scene: Scene) -> None:
    """Keys, made and revoked."""

    async def act(client: httpx.AsyncClient, job: dict[str, Any]) -> httpx.Response:
        answer = await client.post("/api-keys", json={"role": "viewer"})
        if answer.status_code == 201:
            await client.delete(f"/api-keys/{answer.json()['key_id']}")
        return answer

    await _with_job(scene, act)


async def _with_job(
    scene: Scene, act: Callable[[httpx.AsyncClient, dict[str, Any]], Awaitable[httpx.Response]]
) -> None:
    """Do something to a job of one's own as fast as four clients can."""
    target = {"type": "worker", "queue": "attack", "handler": "none"}
    async with scene.client() as client:
        made = await client.post("/jobs", json={"schedule": "0 0 1 1 *", "target": target, "payload": LARGE})
        job = made.json()
        await asyncio.gather(*(again_and_again(lambda: _counted(scene, act(client, job))) for _ in range(4)))


async def _counted(scene: Scene, asked: Awaitable[httpx.Response]) -> None:
    answer = scene.count(await asked)
    # The stored bytes of a tenant over its quota do not become fewer meanwhile.
    scene.seen[ACCEPTED_LATE] += answer.is_success and bool(scene.seen["answers 429"])
