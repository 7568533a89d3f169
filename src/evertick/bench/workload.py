"""The workload of measurements: handlers that do nothing or wait, and jobs in the background that are not due."""

import asyncio
import random
import secrets
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any, TypeAlias

from evertick.executor.handlers.run import Run
from evertick.sdk.app import App

Fields: TypeAlias = dict[str, Any]
"""The fields of a job, as the API takes them."""

QUEUE = "bench"
BACKGROUND_QUEUE = "bench-background"
HANDLER = "noop"
OCCUPY = "occupy"
GRACE_SECONDS = 86_400
MAX_OPEN_RUNS = 10_000
"""Of a job that allows concurrent runs: the largest number that the API takes."""
_LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789"
_EMPTY_BYTES = len('{"text":""}')

app = App(name="bench", queue=QUEUE)
"""The app of the workers."""


@app.handler(HANDLER)
async def noop(run: Run) -> None:
    """Do nothing: only Evertick itself is measured."""


@app.handler(OCCUPY)
async def occupy(run: Run) -> None:
    """Occupy one of a worker's places for a while, and no CPU: so workers have a known capacity on any machine."""
    await asyncio.sleep(run.payload["seconds"])


def target(queue: str = QUEUE, handler: str = HANDLER) -> dict[str, str]:
    return {"type": "worker", "queue": queue, "handler": handler}


def payload(size: int, seed: int) -> dict[str, str] | None:
    """A payload of this many bytes of JSON, or None for zero."""
    if size == 0:
        return None
    choose = random.Random(seed)  # noqa: S311 - a repeatable workload, not a secret
    return {"text": "".join(choose.choices(_LETTERS, k=max(0, size - _EMPTY_BYTES)))}


def once(at: datetime | str, **fields: Any) -> Fields:
    """A job that runs once, at an instant or `now`, even if it is late."""
    schedule = at if isinstance(at, str) else at.isoformat()
    return {"schedule": schedule, "target": target(), "misfire_grace_seconds": GRACE_SECONDS, **fields}


def named(jobs: Iterable[Fields]) -> Iterator[Fields]:
    """Jobs with unique names: the database may have jobs of an earlier measurement."""
    name = f"bench-{secrets.token_hex(4)}"
    return ({**fields, "name": f"{name}-{number}"} for number, fields in enumerate(jobs))


def background_jobs(count: int, rules: int, now_at: datetime, seed: int) -> Iterator[Fields]:
    """Jobs that share `rules` rules and are not due within a month."""
    choose = random.Random(seed)  # noqa: S311 - as above
    variants = _variants(rules, now_at, choose)
    return (choose.choice(variants) for _ in range(count))


def _variants(rules: int, now_at: datetime, choose: random.Random) -> Sequence[Fields]:
    """Of ten rules seven are crons, two are intervals and one is an instant."""
    filler = payload(100, choose.randrange(2**32))
    midnight_at = now_at.replace(hour=0, minute=0, second=0, microsecond=0)
    variants = []
    for number in range(rules):
        first_at = midnight_at + timedelta(days=choose.randrange(31, 330), minutes=number % 1440)
        if number % 10 < 7:
            when = {"schedule": f"{first_at.minute} {first_at.hour} {first_at.day} {first_at.month} *"}
        elif number % 10 < 9:
            when = {"schedule": f"every {choose.randrange(1, 90)}d", "start_at": first_at.isoformat()}
        else:
            when = {"schedule": first_at.isoformat()}
        variants.append({**when, "target": target(BACKGROUND_QUEUE), "payload": filler})
    return variants
