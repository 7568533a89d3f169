"""Pages that stay up to date: a stream of server-sent events, each with the HTML of a fragment that has changed.

The script opens a stream while its page is visible, so that tabs in the background cost nothing. A stream ends when the
session does, when the server stops, or after a while; the browser then opens another one.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from dataclasses import replace

from evertick.api.messages import AuthenticatedRequest, Response
from evertick.api.problems import over_limit
from evertick.dashboard.sessions import session_token
from evertick.domain.access import KeyRole
from evertick.domain.limits import QuotaName

EVERY_SECONDS = 2.0
LIFETIME_SECONDS = 600.0
HEARTBEAT_SECONDS = 15.0
RETRY_MS = 2000
MAX_PER_TENANT = 100
MAX_IN_TOTAL = 500
_BUSY_SECONDS = 5


class LiveFragment:
    """The parts of one response."""

    def __init__(self, request: AuthenticatedRequest, draw: Callable[[AuthenticatedRequest], Awaitable[str]]) -> None:
        tenant = replace(request.tenant, pool=request.services.pool)
        self._request = replace(request, tenant=tenant)
        self._draw = draw
        request.services.live_pages[tenant.tenant_id] += 1

    def close(self) -> None:
        open_pages = self._request.services.live_pages
        open_pages[self._request.tenant.tenant_id] -= 1
        open_pages += type(open_pages)()  # drops zeros

    async def parts(self) -> AsyncIterator[bytes]:
        yield f"retry: {RETRY_MS}\n\n".encode()
        services, ends_at, sent, sent_at = self._request.services, time.monotonic() + LIFETIME_SECONDS, "", 0.0
        while time.monotonic() < ends_at and await self._is_valid():
            async with services.slot_for(KeyRole.VIEWER, self._request.tenant.tenant_id):
                html = await self._draw(self._request)
            if html != sent:
                sent, sent_at = html, time.monotonic()
                yield _event(html)
            elif time.monotonic() - sent_at >= HEARTBEAT_SECONDS:
                sent_at = time.monotonic()
                yield b": heartbeat\n\n"
            if await self._is_stopping():
                return

    async def _is_stopping(self) -> bool:
        """Wait for the next look, or until the server stops."""
        with suppress(TimeoutError):
            async with asyncio.timeout(EVERY_SECONDS):
                await self._request.services.polls.is_stopping.wait()
        return self._request.services.polls.is_stopping.is_set()

    async def _is_valid(self) -> bool:
        return await self._request.services.sessions.caller(session_token(self._request.headers)) is not None


def live(request: AuthenticatedRequest, draw: Callable[[AuthenticatedRequest], Awaitable[str]]) -> Response:
    """Send a fragment now and whenever it has changed."""
    open_pages = request.services.live_pages
    if open_pages[request.tenant.tenant_id] >= MAX_PER_TENANT or open_pages.total() >= MAX_IN_TOTAL:
        raise over_limit(QuotaName.EVENT_STREAMS, "too many pages are open", _BUSY_SECONDS)
    headers = {"X-Accel-Buffering": "no"}
    return Response(200, headers=headers, media_type="text/event-stream", stream=LiveFragment(request, draw))


def _event(html: str) -> bytes:
    return "".join(f"data: {line}\n" for line in html.splitlines()).encode() + b"\n"
