"""A TCP proxy between Evertick and its database, which does to their connections what networks do.

It runs in a thread of its own, so that a test that waits does not hold it up. What it did to a connection stays done:
a connection that was silenced is silent until it is closed, as behind a firewall that has forgotten it.
"""

import asyncio
import contextlib
import socket
import struct
import threading
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import parse_qs, urlsplit

CHUNK = 65536


class _Line:
    """One connection through the proxy."""

    def __init__(self, client: asyncio.StreamWriter, server: asyncio.StreamWriter) -> None:
        self.client = client
        self.server = server
        self.loses_requests = False
        self.loses_replies = False
        self.is_over = asyncio.Event()

    def reset(self) -> None:
        """End both sides, the client's with a reset instead of a goodbye."""
        self.loses_requests = self.loses_replies = False
        link = self.client.get_extra_info("socket")
        with contextlib.suppress(OSError):
            link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.client.transport.abort()
        self.server.transport.abort()


class Proxy:
    """Passes everything on until told otherwise. `url` leads to the same database as the one it was given."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        query = parse_qs(parts.query)
        self._socket = f"{query['host'][0]}/.s.PGSQL.{query['port'][0]}"
        self._user = parts.username or "postgres"
        self._database = parts.path
        self._lines: set[_Line] = set()
        self._delay_seconds = 0.0
        self._lost_share = 0
        self._replies = 0
        self._hangs = False
        self._listener: asyncio.Server | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._thread.start()
        self._port = 0
        self._do(self._listen)

    @property
    def port(self) -> int:
        return self._port

    @property
    def url(self) -> str:
        return f"postgresql://{self._user}@127.0.0.1:{self._port}{self._database}"

    @property
    def connections(self) -> int:
        return len(self._lines)

    def stop(self) -> None:
        self._do(self._close)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def heal(self) -> None:
        """New connections work again, at once and completely. What was silenced is cut."""
        self._delay_seconds, self._lost_share, self._hangs = 0.0, 0, False
        self._do(self._reset, lambda line: line.loses_requests or line.loses_replies)
        self._do(self._listen)

    def cut(self) -> None:
        """Reset all connections there are."""
        self._do(self._reset, lambda _: True)

    def silence(self) -> None:
        """Nothing passes on the connections there are; they stay open."""
        for line in list(self._lines):
            line.loses_requests = line.loses_replies = True

    def lose_replies(self) -> None:
        """What is asked on the connections there are arrives and is done; the answers do not come back."""
        for line in list(self._lines):
            line.loses_replies = True

    def freeze(self) -> None:
        """As a host that stands still: the connections there are fall silent, new ones are accepted and stay so."""
        self._hangs = True
        self.silence()

    def refuse(self) -> None:
        """Accept no new connection."""
        self._do(self._stop_listening)

    def delay(self, seconds: float) -> None:
        """Each way takes so long from now on: a round trip twice as long."""
        self._delay_seconds = seconds

    def reset_instead_of_reply(self, every: int) -> None:
        """One in so many replies is lost, and the connection reset: what was asked is done, COMMIT and all."""
        self._lost_share = every

    def _do(self, work: Callable[..., Awaitable[None]], *arguments: Any) -> None:
        async def run() -> None:
            await work(*arguments)

        asyncio.run_coroutine_threadsafe(run(), self._loop).result(30)

    async def _listen(self) -> None:
        if self._listener is None:
            self._listener = await asyncio.start_server(self._serve, "127.0.0.1", self._port)
            self._port = self._listener.sockets[0].getsockname()[1]

    async def _stop_listening(self) -> None:
        if self._listener is not None:
            self._listener.close()
            self._listener = None

    async def _reset(self, which: Callable[[_Line], bool]) -> None:
        for line in list(self._lines):
            if which(line):
                line.reset()

    async def _close(self) -> None:
        await self._stop_listening()
        await self._reset(lambda _: True)
        await asyncio.gather(*(line.is_over.wait() for line in self._lines))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            answers, server = await asyncio.open_unix_connection(self._socket)
        except OSError:
            writer.transport.abort()
            return
        line = _Line(writer, server)
        line.loses_requests = line.loses_replies = self._hangs
        self._lines.add(line)
        try:
            await asyncio.gather(self._ask(line, reader), self._reply(line, answers))
        finally:
            line.reset()
            self._lines.discard(line)
            line.is_over.set()

    async def _ask(self, line: _Line, reader: asyncio.StreamReader) -> None:
        async def deliver(data: bytes) -> None:
            if not line.loses_requests:
                line.server.write(data)

        await self._pump(reader, deliver)
        # A line that is silent carries no goodbye either: the server keeps its session.
        if not line.loses_requests:
            line.server.close()

    async def _reply(self, line: _Line, reader: asyncio.StreamReader) -> None:
        async def deliver(data: bytes) -> None:
            if line.loses_replies:
                return
            self._replies += 1
            if self._lost_share and self._replies % self._lost_share == 0:
                line.reset()
            else:
                line.client.write(data)

        await self._pump(reader, deliver)
        if not line.loses_replies:
            line.client.close()

    async def _pump(self, reader: asyncio.StreamReader, deliver: Callable[[bytes], Awaitable[None]]) -> None:
        """Deliver what arrives, in order, each piece after the delay."""
        pieces: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

        async def hand_over() -> None:
            while True:
                at, data = await pieces.get()
                await asyncio.sleep(max(0.0, at - self._loop.time()))
                if not data:
                    return
                await deliver(data)

        delivering = asyncio.create_task(hand_over())
        try:
            data = b"?"
            while data:
                try:
                    data = await reader.read(CHUNK)
                except OSError:
                    data = b""
                pieces.put_nowait((self._loop.time() + self._delay_seconds, data))
            await delivering
        finally:
            delivering.cancel()
