"""The archive of a process: its files, used in a few threads of their own, and in turns of each tenant."""

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, TypeVar

from evertick.config.settings import Settings
from evertick.runtime.concurrency import TenantLimit
from evertick.runtime.extras import MissingExtra

if TYPE_CHECKING:
    from evertick.store.archive.parquet import ParquetArchive

_T = TypeVar("_T")

THREADS = 4
READS_PER_TENANT = 2
"""At once. Fewer than there are threads: one tenant alone never makes the others wait."""
MAX_WAITING = 20
WAIT_SECONDS = 10.0


class Archive:
    """Files of the archive. `url` is where they are, for people and for the database."""

    def __init__(self, files: "ParquetArchive", url: str) -> None:
        self.url = url
        self._files = files
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="archive")
        self._turns = TenantLimit(READS_PER_TENANT, max_waiting=MAX_WAITING, wait_seconds=WAIT_SECONDS)

    async def run(self, work: "Callable[[ParquetArchive], _T]") -> _T:
        """Do blocking work with the files in a thread."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, work, self._files)

    async def read(self, tenant_id: int, work: "Callable[[ParquetArchive], _T]") -> _T:
        """The same for a tenant, in its turn. LimitReached: too many of its reads wait."""
        async with self._turns.slot(tenant_id):
            return await self.run(work)

    def close(self) -> None:
        """Wait for work under way to end, not for work that waits."""
        self._threads.shutdown(wait=False, cancel_futures=True)


@asynccontextmanager
async def open_archive(settings: Settings) -> AsyncIterator[Archive | None]:
    """The archive where the settings have one."""
    url = settings.archive_url
    if url is None:
        yield None
        return
    try:
        from evertick.store.archive.parquet import Access, ParquetArchive  # noqa: PLC0415 - an extra
    except ModuleNotFoundError as error:
        raise MissingExtra("EVERTICK_ARCHIVE_URL needs Parquet: pip install 'evertick[archive]'") from error
    access = Access(
        settings.archive_endpoint,
        settings.archive_region,
        settings.archive_access_key,
        settings.archive_secret_key,
    )
    # In a thread: the storage's own set-up may ask the network for credentials.
    archive = Archive(await asyncio.to_thread(ParquetArchive.open, url, access), url)
    try:
        yield archive
    finally:
        archive.close()
