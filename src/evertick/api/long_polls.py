"""Long polls: requests that wait for work of a queue. This module decides which of them may try to lease, and when.

1. A request is added to the group that waits for the same work: one tenant's queue, the same handlers. It tries at
   once, unless others of its group wait already, or some try right now: then it waits behind them.
2. A wake-up for a queue gives the turn to the first of each of its groups. A poll that gets work gives the turn to two
   more, and one that finds none waits again in its old place: as many try as there is work, however many wait. Polls
   that try at the same time race for the work, so among those the order is open.
3. Once a second, a few statements check on behalf of all polls: which queues have work that no wake-up announced, which
   API keys have ended, and which repeated requests were answered elsewhere.

The number of polls is limited, for each tenant and in total. When the total is reached, a new poll takes the place of
the oldest one of the tenant with the most, which ends without work.
"""

import asyncio
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager

from evertick.api.poll_turns import Poll, PollGroup, PollQueue, PollSpec
from evertick.runtime.loop import Loop
from evertick.runtime.wakeups import Listener, queue_named
from evertick.store.database import Pool
from evertick.store.engine import pulls
from evertick.store.engine.wakeups import READY
from evertick.store.location import DatabaseAddress
from evertick.usecases.runs import pull_workers

CHECK_SECONDS = 1.0
"""A lost wake-up costs at most that long."""
MIN_CHECK_SECONDS = 0.1
"""The shortest time between two checks, however many wake-ups arrive."""
MAX_PER_STATEMENT = 500
"""Queues or keys that one statement checks: it is over in milliseconds."""
MAX_TRYING = 4
"""New polls of one group that try before any of them has found out whether there is work."""


class TooManyPolls(Exception):  # noqa: N818 - says what is wrong
    """The tenant, or the process, has as many long polls as it may have."""

    def __init__(self, limit: int) -> None:
        super().__init__(f"{limit} long polls wait already")
        self.limit = limit


class LongPolls:
    """All long polls of one process."""

    def __init__(self, url: DatabaseAddress, pool: Pool, *, per_tenant: int, in_total: int) -> None:
        self._pool = pool
        self._per_tenant = per_tenant
        self._in_total = in_total
        self._tenants: dict[int, dict[Poll, None]] = {}
        self._queues: dict[tuple[int, str], PollQueue] = {}
        self._by_id: dict[int, PollQueue] = {}
        self._listener = Listener(url, self._on_wakeup, READY)
        self._loop = Loop("long polls", self._check)
        self._check_at = 0.0  # monotonic: when the next check of all queues is due
        self._earliest_at = 0.0
        self.is_stopping = asyncio.Event()

    def start(self) -> None:
        self._listener.start()
        self._loop.start()

    async def stop(self) -> None:
        """End all polls, and stop listening."""
        self.end_all()
        await self._loop.stop()
        await self._listener.stop()

    def end_all(self) -> None:
        """Let no poll wait any longer."""
        self.is_stopping.set()
        for poll in list(self._polls()):
            self._end(poll)

    @property
    def count(self) -> int:
        return sum(map(len, self._tenants.values()))

    @contextmanager
    def added(self, spec: PollSpec) -> Iterator[Poll]:
        """A poll among the others. Raises TooManyPolls where there is no room."""
        self._make_room(spec.tenant_id)
        place = spec.tenant_id, spec.queue
        queue = self._queues.setdefault(place, PollQueue(self._by_id))
        group = queue.groups.setdefault(spec.handlers, PollGroup())
        poll = Poll(spec, queue, group)
        if not group.waiting and len(group.members) < MAX_TRYING:
            poll.wake()
        group.members.add(poll)
        self._tenants.setdefault(spec.tenant_id, {})[poll] = None
        if self.is_stopping.is_set():
            self._end(poll)
        try:
            yield poll
        finally:
            self._uncount(poll)
            group.members.discard(poll)
            group.dequeue(poll)
            if poll.has_turn and not (poll.is_key_ended or poll.is_ended):  # it has not used it
                group.wake(1)
            if not group.members:
                del queue.groups[spec.handlers]
            if not queue.groups:
                queue.set_id(None)
                del self._queues[place]

    def _make_room(self, tenant_id: int) -> None:
        own = len(self._tenants.get(tenant_id, ()))
        if own >= self._per_tenant:
            raise TooManyPolls(self._per_tenant)
        if self.count < self._in_total:
            return
        largest = max(self._tenants.values(), key=len)
        if len(largest) <= own + 1:
            raise TooManyPolls(self._in_total)
        self._end(next(iter(largest)))

    def _end(self, poll: Poll) -> None:
        self._uncount(poll)
        poll.is_ended = True
        poll.end()

    def _uncount(self, poll: Poll) -> None:
        """It counts no longer, though it may still have to be answered."""
        polls = self._tenants.get(poll.spec.tenant_id, {})
        polls.pop(poll, None)
        if not polls:
            self._tenants.pop(poll.spec.tenant_id, None)

    def _polls(self) -> Iterator[Poll]:
        return (poll for polls in self._tenants.values() for poll in polls)

    def _on_wakeup(self, _: str, lane_ids: Collection[int] | None) -> None:
        if lane_ids is None:
            self._check_at = 0.0
            self._loop.wake()
            return
        queue_ids = {queue_named(number) for number in lane_ids}
        known = [self._by_id[queue_id] for queue_id in queue_ids if queue_id in self._by_id]
        for queue in known:
            queue.wake()
        # A wake-up with an unknown id may be of a queue that was just created.
        if len(known) < len(queue_ids) and len(self._by_id) < len(self._queues):
            self._loop.wake()

    async def _check(self) -> float:
        """Check on behalf of all polls, or if it is not time for that, of those whose queues are not known yet."""
        await asyncio.sleep(self._earliest_at - time.monotonic())
        began = time.monotonic()
        is_full = began >= self._check_at
        await self._check_queues([place for place, each in self._queues.items() if is_full or each.queue_id is None])
        if is_full:
            await self._check_keys()
            await self._check_responses()
        ended = time.monotonic()
        # At least as long as the check took, so that it never keeps the database busy all the time.
        self._earliest_at = ended + max(MIN_CHECK_SECONDS, ended - began)
        if is_full:
            self._check_at = max(began + CHECK_SECONDS, self._earliest_at)
        return max(0.0, self._check_at - time.monotonic())

    async def _check_queues(self, places: Sequence[tuple[int, str]]) -> None:
        for chunk in _chunks(places):
            for state in await pulls.queue_states(self._pool, chunk):
                queue = self._queues.get((state.tenant_id, state.name))
                if queue is not None:
                    queue.apply(state)

    async def _check_keys(self) -> None:
        polls_of: dict[tuple[int, str], list[Poll]] = {}
        for poll in self._polls():
            polls_of.setdefault((poll.spec.tenant_id, poll.spec.key_id), []).append(poll)
        for chunk in _chunks(list(polls_of)):
            for key in await pull_workers.ended_keys(self._pool, chunk):
                for poll in polls_of[key]:
                    poll.is_key_ended = True
                    poll.end()

    async def _check_responses(self) -> None:
        """A repeated request waits for the answer to the first, which another process may have given."""
        repeated: dict[tuple[int, str], list[Poll]] = {}
        for poll in self._polls():
            if poll.spec.repeat_key is not None:
                repeated.setdefault((poll.spec.tenant_id, poll.spec.repeat_key), []).append(poll)
        for chunk in _chunks(list(repeated)):
            for key in await pulls.answered(self._pool, chunk):
                for poll in repeated[key]:
                    poll.wake()


def _chunks(places: Sequence[tuple[int, str]]) -> Iterator[Sequence[tuple[int, str]]]:
    return (places[start : start + MAX_PER_STATEMENT] for start in range(0, len(places), MAX_PER_STATEMENT))
