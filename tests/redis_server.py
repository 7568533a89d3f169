"""A Redis server of a test's own, as a child process on a free port."""

import asyncio
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from redis.asyncio import Redis
from redis.exceptions import RedisError

from engine import PATIENCE_SECONDS, until
from evertick.store.engine import redis_buckets
from ports import free_port

STOP_SECONDS = 60


class RedisServer:
    """A server that can be stopped and started again on its port. It keeps nothing over a stop, unless `is_durable`."""

    def __init__(
        self,
        directory: Path,
        password: str | None = None,
        *,
        is_durable: bool = False,
        replica_of: "RedisServer | None" = None,
    ) -> None:
        self.port = free_port()
        self._directory = directory
        self._process: asyncio.subprocess.Process | None = None
        self._options = ["--requirepass", password] if password else []
        self._options += ["--appendonly", "yes", "--appendfsync", "always"] if is_durable else []
        self._options += ["--replicaof", "127.0.0.1", str(replica_of.port)] if replica_of else []
        self.url = f"redis://{f':{password}@' if password else ''}127.0.0.1:{self.port}/0"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    async def start(self) -> None:
        words = ["redis-server", "--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self._directory)]
        words += ["--save", "", *self._options]
        self._process = await asyncio.create_subprocess_exec(*words, stdout=asyncio.subprocess.DEVNULL)
        async with Redis.from_url(self.url) as client:

            async def answers() -> bool:
                with suppress(RedisError, OSError):
                    return bool(await client.ping())
                return False

            await until(answers)

    async def stop(self) -> None:
        await self._end(signal.SIGTERM)

    async def kill(self) -> None:
        await self._end(signal.SIGKILL)

    async def _end(self, number: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(number)
            async with asyncio.timeout(STOP_SECONDS):
                await process.wait()


@asynccontextmanager
async def redis_server(
    password: str | None = None, *, is_durable: bool = False, replica_of: RedisServer | None = None
) -> AsyncIterator[RedisServer]:
    if shutil.which("redis-server") is None:
        pytest.skip("NOT TESTED WITH REDIS: there is no redis-server; on Debian, apt-get install redis-server")
    with tempfile.TemporaryDirectory(prefix="evertick-redis-") as directory:
        server = RedisServer(Path(directory), password, is_durable=is_durable, replica_of=replica_of)
        await server.start()
        try:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(redis_buckets, "TIMEOUT_SECONDS", PATIENCE_SECONDS)  # a busy machine is no outage
                yield server
        finally:
            await server.stop()


@asynccontextmanager
async def babbling_server() -> AsyncIterator[int]:
    """The port of a server that answers each command with a number."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.read(65_536):
            writer.write(b":1\r\n" * 8)
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()[1]
