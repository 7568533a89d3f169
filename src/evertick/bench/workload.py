"""The jobs that measurements are made of: one-offs that do nothing, and a crowd that only stands there."""

import random
import secrets
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any, TypeAlias

Fields: TypeAlias = dict[str, Any]
"""A job as people give it."""

QUEUE = "bench"
CROWD_QUEUE = "bench-crowd"
HANDLER = "noop"
GRACE_SECONDS = 86_400
_LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789"
_EMPTY_BYTES = len('{"text":""}')


def target(queue: str = QUEUE) -> dict[str, str]:
    return {"type": "worker", "queue": queue, "handler": HANDLER}


def payload(size: int, seed: int) -> dict[str, str] | None:
    """A payload of so many bytes as JSON; none for zero."""
    if size == 0:
        return None
    choose = random.Random(seed)  # noqa: S311 - a repeatable load, not a secret
    return {"text": "".join(choose.choices(_LETTERS, k=max(0, size - _EMPTY_BYTES)))}


def once(at: datetime | str, **fields: Any) -> Fields:
    """A run at one instant, or `now`. However late it gets, it runs."""
    schedule = at if isinstance(at, str) else at.isoformat()
    return {"schedule": schedule, "target": target(), "misfire_grace_seconds": GRACE_SECONDS, **fields}


def named(jobs: Iterable[Fields]) -> Iterator[Fields]:
    """Jobs by names that none had before: those of an earlier measurement may be there too."""
    name = f"bench-{secrets.token_hex(4)}"
    return ({**fields, "name": f"{name}-{number}"} for number, fields in enumerate(jobs))


def crowd(count: int, rules: int, now_at: datetime, seed: int) -> Iterator[Fields]:
    """Jobs that share so many rules, and none of which is due within a month."""
    choose = random.Random(seed)  # noqa: S311 - as above
    kinds = _kinds(rules, now_at, choose)
    return (choose.choice(kinds) for _ in range(count))


def _kinds(rules: int, now_at: datetime, choose: random.Random) -> Sequence[Fields]:
    """Of ten rules seven are crons, two intervals, one an instant."""
    filler = payload(100, choose.randrange(2**32))
    midnight_at = now_at.replace(hour=0, minute=0, second=0, microsecond=0)
    kinds = []
    for number in range(rules):
        first_at = midnight_at + timedelta(days=choose.randrange(31, 330), minutes=number % 1440)
        if number % 10 < 7:
            when = {"schedule": f"{first_at.minute} {first_at.hour} {first_at.day} {first_at.month} *"}
        elif number % 10 < 9:
            when = {"schedule": f"every {choose.randrange(1, 90)}d", "start_at": first_at.isoformat()}
        else:
            when = {"schedule": first_at.isoformat()}
        kinds.append({**when, "target": target(CROWD_QUEUE), "payload": filler})
    return kinds
