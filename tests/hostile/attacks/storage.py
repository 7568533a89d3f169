"""What leaves rows behind: kept answers, versions, keys, queues, entries in the audit log."""

import asyncio
import itertools
import secrets
from collections.abc import Awaitable, Callable
from typing import Any

import httpx

from hostile.attacks.context import AttackContext, repeat_forever

LARGE = {"text": secrets.token_hex(24_500)}
"""Random, so that it cannot be stored in less."""
ACCEPTED_LATE = "accepted after a refusal"


async def kept_answers(context: AttackContext) -> None:
    """`pause` of a large job, each time under another idempotency key."""

    async def act(client: httpx.AsyncClient, job: dict[str, Any]) -> httpx.Response:
        headers = {"Idempotency-Key": secrets.token_hex(8)}
        return await client.post(f"/jobs/{job['job_id']}/pause", json={}, headers=headers)

    await _with_job(context, act)


async def versions(context: AttackContext) -> None:
    """Edits of a large job."""
    numbers = itertools.count()

    async def act(client: httpx.AsyncClient, job: dict[str, Any]) -> httpx.Response:
        return await client.patch(f"/jobs/{job['job_id']}", json={"payload": {**LARGE, "number": next(numbers)}})

    await _with_job(context, act)


async def queues_and_rules(context: AttackContext) -> None:
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

    await _with_job(context, act)


async def api_keys(context: AttackContext) -> None:
    """Keys, made and revoked."""

    async def act(client: httpx.AsyncClient, job: dict[str, Any]) -> httpx.Response:
        answer = await client.post("/api-keys", json={"role": "viewer"})
        if answer.status_code == 201:
            await client.delete(f"/api-keys/{answer.json()['key_id']}")
        return answer

    await _with_job(context, act)


async def _with_job(
    context: AttackContext, act: Callable[[httpx.AsyncClient, dict[str, Any]], Awaitable[httpx.Response]]
) -> None:
    """Do something to a job of one's own as fast as four clients can."""
    target = {"type": "worker", "queue": "attack", "handler": "none"}
    async with context.client() as client:
        made = await client.post("/jobs", json={"schedule": "0 0 1 1 *", "target": target, "payload": LARGE})
        job = made.json()
        await asyncio.gather(*(repeat_forever(lambda: _counted(context, act(client, job))) for _ in range(4)))


async def _counted(context: AttackContext, asked: Awaitable[httpx.Response]) -> None:
    answer = context.count(await asked)
    # The stored bytes of a tenant over its quota do not become fewer meanwhile.
    context.counts[ACCEPTED_LATE] += answer.is_success and bool(context.counts["answers 429"])
