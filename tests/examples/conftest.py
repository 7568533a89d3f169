"""One server for all examples and pages."""

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio

import postgres
from cli.processes import evertick
from front_door import LEASE_SECONDS, Server


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def server() -> AsyncIterator[Server]:
    # As `data_dir`, for all tests of this directory.
    data_dir = Path(os.environ["EVERTICK_TEST_SERVERS"]) / f"{postgres.EMBEDDED}-{os.getpid()}-front-door"
    options = ("--data-dir", str(data_dir), "--port", "0", "--log-level", "warning")
    async with evertick("up", *options, EVERTICK_LEASE_SECONDS=str(LEASE_SECONDS)) as up:
        url = (await up.ready()).split()[-1]
        api_key = (await up.line()).split()[-1]
        yield Server(url, api_key, data_dir)
        assert await up.stop() == 0
