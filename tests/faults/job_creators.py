"""Clients that create jobs over the API during a fault test."""

import asyncio
import time

import httpx

from faults.full_cluster import RETRIED, WORKER_TARGET


class JobCreator:
    """Creates one-off jobs over the API, and jobs with new queues and rules, continuously."""

    def __init__(self, owner: str, address: str, key: str) -> None:
        self.acknowledged: dict[str, int] = {}
        """When each creation was acknowledged, in microseconds since 1970."""
        self._owner = owner
        self._client = httpx.AsyncClient(
            base_url=f"{address}/api/v1",
            headers={"Authorization": f"Bearer {key}"},
            timeout=20,
            trust_env=False,
        )

    async def run(self) -> None:
        """Create jobs until cancelled."""
        async with self._client:
            number = 0
            while True:
                number += 1
                await self._create(number)
                await asyncio.sleep(0.02)

    async def _create(self, number: int) -> None:
        payload = {"seconds": 0.1, "owner": self._owner}
        if number % 4:  # each queue and each rule is used twice, fifty numbers apart
            new = number // 100 * 50 + number % 50
            target = {"type": "worker", "queue": f"{self._owner}-{new}", "handler": "stay"}
            job = {"schedule": f"{new % 60} {new // 60 % 24} 1 1 *", "target": target}
        else:
            job = {"schedule": "now", "target": WORKER_TARGET}
        try:
            answer = await self._client.post("/jobs", json={**RETRIED, **job, "payload": payload})
        except httpx.HTTPError:
            return
        if answer.status_code == 201:
            self.acknowledged[answer.json()["job_id"]] = time.time_ns() // 1000
