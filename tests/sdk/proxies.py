"""Ways to a server that lose answers, or can be closed."""

import asyncio


class Proxy:
    """Hands bytes on between clients and a server; what it makes of each connection is for its kinds to say."""

    def __init__(self, target: str) -> None:
        host, _, port = target.removeprefix("http://").partition(":")
        self._target = host, int(port)
        self._writers: set[asyncio.StreamWriter] = set()
        self._serving: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> str:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        self.cut()
        await asyncio.gather(*self._serving)

    def cut(self) -> None:
        """Hang up on everybody."""
        for writer in self._writers:
            writer.transport.abort()

    def lets_pass(self) -> bool:
        """Whether an answer reaches the client."""
        return True

    def lets_in(self) -> bool:
        """Whether a connection reaches the server."""
        return True

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)
        if not self.lets_in():
            writer.transport.abort()
            return
        above_reader, above_writer = await asyncio.open_connection(*self._target)
        self._writers |= {writer, above_writer}
        try:
            await asyncio.gather(self._ask(reader, above_writer), self._answer(above_reader, writer))
        except OSError:
            pass  # one of both has hung up
        finally:
            self._writers -= {writer, above_writer}
            writer.transport.abort()
            above_writer.transport.abort()

    async def _ask(self, reader: asyncio.StreamReader, above: asyncio.StreamWriter) -> None:
        while data := await reader.read(65_536):
            above.write(data)
        above.close()

    async def _answer(self, above: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await above.read(65_536):
            if not self.lets_pass():
                break
            writer.write(data)
        writer.close()


class DroppingProxy(Proxy):
    """Carries requests to the server, and hangs up in place of the first answers."""

    def __init__(self, target: str, drops: int = 1) -> None:
        super().__init__(target)
        self._drops = drops
        self.dropped = 0

    def lets_pass(self) -> bool:
        if self.dropped == self._drops:
            return True
        self.dropped += 1
        return False


class Gate(Proxy):
    """A way to the server that can be closed."""

    def __init__(self, target: str) -> None:
        super().__init__(target)
        self._is_open = True
        self.refused = 0

    def lets_in(self) -> bool:
        self.refused += not self._is_open
        return self._is_open

    def close(self) -> None:
        self._is_open = False
        self.cut()

    def open(self) -> None:
        self._is_open = True
