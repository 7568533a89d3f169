"""Clients of the API in tests, and what they often say."""

import itertools
import re
from typing import Any

import httpx
import pytest

from engine import until
from evertick.domain.access import KeyRole
from evertick.store.database import Pool
from evertick.store.tenants import tenants
from evertick.usecases.tenants import keys

TARGET = {"type": "worker", "queue": "billing", "handler": "send_invoice"}
JOB: dict[str, Any] = {"schedule": "0 9 * * 1", "target": TARGET}
ON_SHARED_SERVER = pytest.mark.asyncio(loop_scope="module")
"""For tests that use one server of their module, because none of them changes what another one sees."""
_numbers = itertools.count(1)


class Caller(httpx.AsyncClient):
    """A client with a key. Paths are below the API's."""

    def __init__(self, address: str, key: str | None) -> None:
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        # The environment's proxies are none of a test's business. Certificates take 20 ms to read, for each client.
        super().__init__(base_url=f"{address}/api/v1", headers=headers, timeout=120, trust_env=False, verify=False)
        self.key = key

    async def create(self, **fields: Any) -> dict[str, Any]:
        answer = await self.post("/jobs", json={**JOB, **fields})
        assert answer.status_code == 201, answer.text
        created: dict[str, Any] = answer.json()
        return created

    async def lease(self, queue: str = "billing", worker: str = "w", **more: Any) -> list[dict[str, Any]]:
        answer = await self.post(f"/queues/{queue}/lease", json={"worker_id": worker, **more})
        assert answer.status_code == 200, answer.text
        attempts: list[dict[str, Any]] = answer.json()["attempts"]
        return attempts

    async def record(self, *outcomes: dict[str, Any], worker: str = "w") -> dict[str, Any]:
        answer = await self.post("/outcomes", json={"worker_id": worker, "outcomes": list(outcomes)})
        assert answer.status_code == 200, answer.text
        recorded: dict[str, Any] = answer.json()
        return recorded

    async def polls(self) -> int:
        """How many long polls wait at the server."""
        metrics = await self.get(str(self.base_url.copy_with(path="/metrics")))
        (line,) = re.findall(r"^evertick_long_polls (\S+)$", metrics.text, re.MULTILINE)
        return int(float(line))

    async def until_polls(self, count: int) -> None:
        async def are_there() -> bool:
            return await self.polls() == count

        await until(are_there)


class Callers:
    """Makes clients, and closes them."""

    def __init__(self, address: str, pool: Pool) -> None:
        self.address = address
        self._pool = pool
        self._made: list[Caller] = []

    async def tenant(self) -> int:
        """A new tenant, which is not the host."""
        row = await tenants.add(self._pool, f"tenant {next(_numbers)}", weight=1)
        assert row is not None
        return row.tenant_id

    async def make(self, role: str, tenant_id: int = 1) -> Caller:
        new = await keys.create(self._pool, tenant_id, KeyRole(role))
        return self.of(new.api_key)

    def of(self, key: str | None) -> Caller:
        caller = Caller(self.address, key)
        self._made.append(caller)
        return caller

    async def close(self) -> None:
        for caller in self._made:
            await caller.aclose()


def is_problem(answer: httpx.Response, status: int, slug: str) -> dict[str, Any]:
    """The answer's members, once it is a problem of this kind with all that every problem has."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    problem: dict[str, Any] = answer.json()
    assert problem["type"] == f"urn:evertick:problem:{slug}"
    assert problem["status"] == status
    assert problem["title"]
    assert problem["detail"]
    assert problem["instance"] == answer.request.url.path
    assert problem["request_id"] == answer.headers["x-request-id"]
    return problem


def pointers(answer: httpx.Response) -> list[str]:
    """Where the faults of bad input are."""
    return [error["pointer"] for error in is_problem(answer, 422, "invalid-input")["errors"]]
