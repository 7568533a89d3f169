"""A dispatcher whose broker accepts everything: attempts are handed over, and their messages kept for the test."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import datetime, timedelta

from engine import PATIENCE_SECONDS
from evertick.domain.attempt import Attempt, AttemptOutcome, HandedOver
from evertick.domain.ids import Prefix, format_id, format_run_id, format_token
from evertick.domain.schedule.instants import to_us, utc_text
from evertick.executor.executor import Executor
from evertick.executor.sources.database.queues import NamedQueues
from evertick.executor.sources.database.source import DatabaseSource
from evertick.runtime.tracing import traceparent_of

MAKE_REPORTED = """
UPDATE job_versions
   SET handler = NULL, spec = jsonb_set(spec::jsonb, '{target,completion}', '"reported"')
"""
"""Turns the jobs of a test into ones that a dispatcher publishes. The targets themselves are tested elsewhere."""


class Publisher:
    """A handler as a dispatcher has it. `before_answer` is what happens before the broker acknowledges a message."""

    is_async = True
    start_cost = 1.0
    begin = None
    names = ("",)

    def __init__(self) -> None:
        self.published: asyncio.Queue[tuple[dict[str, str], bytes]] = asyncio.Queue()
        self.before_answer: Callable[[str], Awaitable[None]] | None = None

    def find(self, attempt: Attempt) -> "Publisher":
        return self

    def kinds(self) -> set[bool]:
        return {True}

    async def call(self, attempt: Attempt, started_at: datetime, call: object) -> HandedOver:
        attributes = attributes_of(attempt)
        self.published.put_nowait((attributes, b"null" if attempt.payload is None else attempt.payload.encode()))
        if self.before_answer is not None:
            await self.before_answer(attributes["token"])
        return HandedOver("topic invoices, partition 0, offset 1")

    def outcome_of(self, value: AttemptOutcome) -> AttemptOutcome:
        return value

    def deadline_seconds(self, attempt: Attempt) -> float:
        return attempt.timeout_seconds

    async def next_message(self) -> tuple[dict[str, str], bytes]:
        """The next message: attributes of CloudEvents, and the body."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            return await self.published.get()

    async def next(self) -> dict[str, str]:
        return (await self.next_message())[0]


def attributes_of(attempt: Attempt) -> dict[str, str]:
    job_id = format_id(Prefix.JOB, attempt.job_id)
    return {
        "specversion": "1.0",
        "id": format_run_id(attempt.job_id, to_us(attempt.fire_at)),
        "source": f"/evertick/jobs/{job_id}",
        "type": "evertick.run.fired",
        "subject": attempt.name,
        "time": utc_text(attempt.fire_at),
        "idempotencykey": attempt.idempotency_key,
        "fencingtoken": str(attempt.token[1]),
        "token": format_token(*attempt.token),
        "attempt": str(attempt.attempt),
        "reason": attempt.reason,
        "traceparent": traceparent_of(attempt),
    }


@asynccontextmanager
async def publishing(database_url: str, publisher: Publisher, queue: str) -> AsyncIterator[Executor]:
    source = DatabaseSource(database_url, NamedQueues([queue], 1), lease_time=timedelta(seconds=10))
    executor = Executor(source, publisher, name="dispatcher", role="dispatcher")
    await executor.start()
    yield executor
    await executor.stop(timedelta(seconds=5))
