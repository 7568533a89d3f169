"""`/metrics` and `/livez` of a process without the API, on a port of its own.

One answer for each connection, small limits: whatever a client does, the process goes on. The remote worker uses this
module without the store.
"""

import asyncio
import hmac
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager

from evertick.config.settings import Settings
from evertick.metrics.catalog import LOOP_DELAY
from evertick.metrics.exposition import MEDIA_TYPE, page
from evertick.metrics.queue_labels import queue_labels
from evertick.runtime.loop import LoopDelay
from evertick.runtime.process import CannotListen

logger = logging.getLogger("evertick")

MAX_HEAD = 8 * 1024
MAX_CONNECTIONS = 32
REQUEST_SECONDS = 15.0
"""For a whole request. The figures of the cluster take less, or are left out."""
_REASONS = {200: "OK", 400: "Bad Request", 401: "Unauthorized", 404: "Not Found", 405: "Method Not Allowed"}

MakePage = Callable[[], Awaitable[bytes]]


async def page_of_process() -> bytes:
    """The page of a process that has no figures of the cluster."""
    return page({})


class MetricsServer:
    """Answers with `make_page`; with a key, only to those who send it as a bearer."""

    def __init__(self, make_page: MakePage, key: str | None = None) -> None:
        self._make_page = make_page
        self._key = key
        self._writers: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None

    async def start(self, host: str, port: int) -> str:
        """Listen, and return the address. With port 0 a free one is chosen."""
        try:
            self._server = await asyncio.start_server(self._serve, host, port, limit=MAX_HEAD)
        except OSError as error:
            raise CannotListen(f"cannot listen for metrics on {host} port {port}: {error.strerror}") from error
        port = self._server.sockets[0].getsockname()[1]
        return f"http://{f'[{host}]' if ':' in host else host}:{port}"

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
            for writer in list(self._writers):
                writer.transport.abort()
            await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._writers) >= MAX_CONNECTIONS:
            writer.transport.abort()
            return
        self._writers.add(writer)
        try:
            async with asyncio.timeout(REQUEST_SECONDS):
                head = await reader.readuntil(b"\r\n\r\n")
                writer.write(await self._answer(head.decode("latin-1")))
                await writer.drain()
                writer.close()
                await writer.wait_closed()
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            writer.transport.abort()  # it is gone, too slow, or sends too much
        except Exception:
            logger.exception("the metrics could not be shown")
            writer.transport.abort()
        finally:
            self._writers.discard(writer)

    async def _answer(self, head: str) -> bytes:
        first, *fields = head.split("\r\n")
        method, _, rest = first.partition(" ")
        path, _, protocol = rest.partition(" ")
        if not protocol.startswith("HTTP/1."):
            return _response(400)
        if method != "GET":
            return _response(405)
        match path.partition("?")[0]:
            case "/livez":
                return _response(200, b'{"status":"alive"}', "application/json")
            case "/metrics" if self._key is None or self._is_keyed(fields):
                return _response(200, await self._make_page(), MEDIA_TYPE)
            case "/metrics":
                return _response(401)
            case _:
                return _response(404)

    def _is_keyed(self, fields: list[str]) -> bool:
        named = (field.partition(":") for field in fields)
        given = next((value.strip() for name, _, value in named if name.lower() == "authorization"), "")
        return is_metrics_key(given.removeprefix("Bearer ").strip(), self._key)


def is_metrics_key(given: str, key: str | None) -> bool:
    """Compared in constant time."""
    return key is not None and hmac.compare_digest(given.encode(), key.encode())


def _response(status: int, body: bytes = b"", media_type: str = "text/plain") -> bytes:
    challenge = "WWW-Authenticate: Bearer\r\n" if status == 401 else ""
    head = (
        f"HTTP/1.1 {status} {_REASONS[status]}\r\nContent-Type: {media_type}\r\nContent-Length: {len(body)}\r\n"
        f"{challenge}Connection: close\r\n\r\n"
    )
    return head.encode() + body


@asynccontextmanager
async def serving_metrics(
    settings: Settings, make_page: MakePage = page_of_process, *, times_loop: bool = True
) -> AsyncIterator[str | None]:
    """Set up the metrics of a process, and serve them where the settings name a port; yields the address.

    `times_loop`: measure the delay of the event loop, which the API does itself.
    """
    queue_labels.choose(settings.metrics_queues)
    async with AsyncExitStack() as stack:
        if times_loop:
            delay = LoopDelay(LOOP_DELAY.of().observe)
            delay.start()
            stack.push_async_callback(delay.stop)
        address = None
        if settings.metrics_port is not None:
            server = MetricsServer(make_page, settings.metrics_key)
            address = await server.start(settings.metrics_host, settings.metrics_port)
            stack.push_async_callback(server.stop)
            logger.info("metrics are at %s/metrics", address)
        yield address
