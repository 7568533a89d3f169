"""Prometheus and promtool for tests: of Debian's package `prometheus`."""

import asyncio
import json
import shutil
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from engine import until
from ports import free_port

STOP_SECONDS = 60


def tool(name: str) -> str:
    """The path of a program of the package; the test is skipped where it is not installed."""
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed: apt-get install prometheus")
    return found


class Prometheus:
    """A running server."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self._client = client

    async def get(self, path: str, **query: str) -> Any:
        answer = await self._client.get(f"/api/v1/{path}", params=query)
        assert answer.status_code == 200, answer.text
        return answer.json()["data"]

    async def value(self, query: str) -> float | None:
        """The value of an expression with one result; None: it has none."""
        results = (await self.get("query", query=query))["result"]
        return float(results[0]["value"][1]) if results else None

    async def is_ready(self) -> bool:
        with suppress(httpx.TransportError):
            return (await self._client.get("/-/ready")).status_code == 200
        return False


@asynccontextmanager
async def prometheus(directory: Path, targets: Sequence[str], rules: Path) -> AsyncIterator[Prometheus]:
    """A server that scrapes targets and evaluates rules each second."""
    program = tool("prometheus")
    config = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(rules)],
        "scrape_configs": [{"job_name": "evertick", "static_configs": [{"targets": list(targets)}]}],
    }
    file = directory / "prometheus.yml"
    # JSON is YAML.
    file.write_text(json.dumps(config), encoding="utf-8")
    address = f"127.0.0.1:{free_port()}"
    words = [f"--config.file={file}", f"--storage.tsdb.path={directory / 'data'}", f"--web.listen-address={address}"]
    process = await asyncio.create_subprocess_exec(program, *words, stderr=asyncio.subprocess.DEVNULL)
    try:
        async with httpx.AsyncClient(base_url=f"http://{address}", trust_env=False, timeout=60) as client:
            server = Prometheus(client)
            await until(server.is_ready)
            yield server
    finally:
        process.terminate()
        await asyncio.wait_for(process.wait(), STOP_SECONDS)
