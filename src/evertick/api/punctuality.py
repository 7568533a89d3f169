"""Connections on which a request's headers have to arrive in time. Uvicorn itself waits for them for ever."""

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEADER_SECONDS = 10.0


class PunctualProtocol(HttpToolsProtocol):
    """Hangs up on who connects, or begins a request, and does not go on."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._expect_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        self._expect_nothing()
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        if self._late is None:  # another request on the same connection
            self._expect_headers()

    def on_headers_complete(self) -> None:
        self._expect_nothing()
        super().on_headers_complete()

    def _expect_headers(self) -> None:
        self._late = self.loop.call_later(HEADER_SECONDS, self.transport.close)

    def _expect_nothing(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None
