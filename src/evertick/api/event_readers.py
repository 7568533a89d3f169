"""Open event streams: requests that are answered with events as they happen. One look for all of them finds out whose
tenants have new ones.

1. While streams are open, a statement several times a second says how far the stream reaches, and which tenants have
   events that their readers have not got. These are woken.
2. A woken reader reads up to that position. All readers of a tenant that have got everything read the same page, so it
   is read once for all of them.
3. Once a second the keys of all streams are checked; those of ended keys end.

The number of streams is limited, for each tenant and in total. Every stream ends when the server stops; its client goes
on elsewhere, from the last event that it has.
"""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import NamedTuple, TypeAlias

import msgspec

from evertick.contract.events import Event
from evertick.domain.events import EventType
from evertick.domain.ids import MAX_ID
from evertick.runtime.events import EventPage
from evertick.runtime.loop import Loop
from evertick.store.database import Pool
from evertick.store.tenants import events
from evertick.usecases.errors import EventStreamNotFound
from evertick.usecases.runs import pull_workers

LOOK_SECONDS = 0.25
KEYS_SECONDS = 1.0
IDLE_SECONDS = 60.0
HEARTBEAT_SECONDS = 15.0
"""Proxies close connections that are silent for a minute, and some for half of it."""
RETRY_MS = 2000
MAX_PER_TENANT = 50
MAX_IN_TOTAL = 1000
PAGE = 200

ReadPage: TypeAlias = Callable[[int | None, int], Awaitable[EventPage]]
"""Reads the events after a position, up to another. None: all that are kept."""
_encoder = msgspec.json.Encoder()


class TooManyStreams(Exception):  # noqa: N818 - says what is wrong
    """The tenant, or the process, has as many open streams as it may have."""

    def __init__(self, limit: int) -> None:
        super().__init__(f"{limit} event streams are open already")


class StreamSpec(NamedTuple):
    """Whose stream it is, and what it wants. `after`: the position of the last event that the client has."""

    tenant_id: int
    key_id: str
    types: tuple[EventType, ...]
    after: int | None

    @property
    def key(self) -> tuple[int, str]:
        return self.tenant_id, self.key_id


class OpenStream:
    """The parts of one response."""

    def __init__(self, spec: StreamSpec, readers: "EventReaders", read: ReadPage) -> None:
        self.spec = spec
        self.after = spec.after
        self.is_ended = False
        self.is_waiting = False
        self._woken = asyncio.Event()
        self._readers = readers
        self._read = read

    def wake(self) -> None:
        self._woken.set()

    def end(self) -> None:
        self.is_ended = True
        self._woken.set()

    def close(self) -> None:
        """Count it no longer."""
        self._readers.remove(self)

    async def parts(self) -> AsyncIterator[bytes]:
        yield f"retry: {RETRY_MS}\n\n".encode()
        quiet_since = time.monotonic()
        while not self.is_ended:
            self._woken.clear()
            try:
                page = await self._readers.read(self, self._read)
            except EventStreamNotFound:
                return  # it was removed meanwhile
            self.after = page.cursor
            if page.events:
                quiet_since = time.monotonic()
                yield _written(page.events)
            elif time.monotonic() - quiet_since >= HEARTBEAT_SECONDS:
                quiet_since = time.monotonic()
                # An id without data is remembered by the client, and no event.
                yield f": heartbeat\nid: {self.after}\n\n".encode()
            if page.is_last:
                await self._wait()

    async def _wait(self) -> None:
        self.is_waiting = True
        try:
            async with asyncio.timeout(HEARTBEAT_SECONDS):
                await self._woken.wait()
        except TimeoutError:
            pass
        finally:
            self.is_waiting = False


class EventReaders:
    """All open streams of one process."""

    def __init__(self, pool: Pool, *, per_tenant: int = MAX_PER_TENANT, in_total: int = MAX_IN_TOTAL) -> None:
        self._pool = pool
        self._per_tenant = per_tenant
        self._in_total = in_total
        self._open: dict[OpenStream, None] = {}
        self._count: Counter[int] = Counter()
        self._reached = 0
        self._pages: dict[tuple[object, ...], asyncio.Future[EventPage]] = {}
        self._keys_at = 0.0
        self._is_stopping = False
        self._loop = Loop("event streams", self._look)

    def start(self) -> None:
        self._loop.start()

    async def stop(self) -> None:
        self.end_all()
        await self._loop.stop()

    def end_all(self) -> None:
        self._is_stopping = True
        for stream in list(self._open):
            stream.end()

    def __len__(self) -> int:
        return len(self._open)

    def open(self, spec: StreamSpec, read: ReadPage) -> OpenStream:
        """A stream among the others, until it is closed. Raises TooManyStreams where there is no room."""
        if self._count[spec.tenant_id] >= self._per_tenant:
            raise TooManyStreams(self._per_tenant)
        if len(self._open) >= self._in_total:
            raise TooManyStreams(self._in_total)
        stream = OpenStream(spec, self, read)
        self._open[stream] = None
        self._count[spec.tenant_id] += 1
        if self._is_stopping:
            stream.end()
        self._loop.wake()
        return stream

    def remove(self, stream: OpenStream) -> None:
        if stream in self._open:
            del self._open[stream]
            self._count[stream.spec.tenant_id] -= 1

    async def read(self, stream: OpenStream, read: ReadPage) -> EventPage:
        """The next page of a stream. Streams that want the same one share it."""
        place = stream.spec.tenant_id, stream.spec.types, stream.after, self._reached
        task = self._pages.get(place)
        if task is None:
            task = self._pages[place] = asyncio.ensure_future(read(stream.after, self._reached))
            task.add_done_callback(lambda _: self._pages.pop(place, None))
        return await asyncio.shield(task)

    async def _look(self) -> float:
        if not self._open:
            return IDLE_SECONDS
        afters = {stream.spec.tenant_id: MAX_ID for stream in self._open}
        for stream in self._open:
            if stream.is_waiting:
                tenant_id = stream.spec.tenant_id
                afters[tenant_id] = min(afters[tenant_id], stream.after or 0)
        found = await events.reached(self._pool, list(afters.items()))
        self._reached = max(self._reached, *(row.last_position for row in found))
        fresh = {row.tenant_id for row in found if row.has_more}
        for stream in self._open:
            if stream.is_waiting and stream.spec.tenant_id in fresh:
                stream.wake()
        if time.monotonic() >= self._keys_at:
            self._keys_at = time.monotonic() + KEYS_SECONDS
            await self._end_keys()
        return LOOK_SECONDS

    async def _end_keys(self) -> None:
        ended = await pull_workers.ended_keys(self._pool, {stream.spec.key for stream in self._open})
        for stream in self._open:
            if stream.spec.key in ended:
                stream.end()


def _written(found: Sequence[Event]) -> bytes:
    return b"".join(b"id: %b\ndata: %b\n\n" % (event.id.encode(), _encoder.encode(event)) for event in found)
