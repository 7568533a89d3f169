"""A cluster of real processes for each fault test, on a database of its own."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from faults.cluster import Cluster


@pytest.fixture
async def cluster(database_url: str, tmp_path: Path) -> AsyncIterator[Cluster]:
    cluster = Cluster(database_url, tmp_path)
    await cluster.open()
    yield cluster
    await cluster.close()
