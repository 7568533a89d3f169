"""Rate buckets in the database, from which all processes draw. Called by `runtime/rate_slices`; the janitor prunes."""

from collections.abc import Sequence
from datetime import timedelta
from typing import NamedTuple, Protocol

from evertick.domain.rate_bucket import Drawn, Rate
from evertick.store import statements
from evertick.store.database import Pool
from evertick.store.statements import Connection, row_count

KEPT = timedelta(hours=1)
"""Full buckets stay for so long, so that those in use are not made anew all the time."""


def submit_key(tenant_id: int) -> str:
    """The name of a tenant's bucket for submissions."""
    return f"submit:{tenant_id}"


class Ask(NamedTuple):
    """A draw of up to `wanted` tokens, or of none if fewer than `least` are there."""

    key: str
    rate: Rate
    least: int
    wanted: int


class RateBuckets(Protocol):
    """Where rate buckets are kept."""

    async def draw(self, asks: Sequence[Ask]) -> list[Drawn | None]:
        """Draw for each of some asks with different keys, in their order. None: somebody else is drawing."""


class _Row(NamedTuple):
    key: str
    granted: int
    wait_us: int


_SQL = statements.load("rate_buckets")
_DRAW = _SQL["draw"].rows(_Row)
_PRUNE = _SQL["prune"]


class DatabaseBuckets:
    """Rate buckets in the table `rate_buckets`, by the database's clock."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def draw(self, asks: Sequence[Ask]) -> list[Drawn | None]:
        """Draw for each of some asks with different keys, in their order. None: somebody else is drawing."""
        rows = await _DRAW.all(
            self._pool,
            keys=[ask.key for ask in asks],
            least=[ask.least for ask in asks],
            wanted=[ask.wanted for ask in asks],
            per_second=[ask.rate.per_second for ask in asks],
            bursts=[ask.rate.burst for ask in asks],
        )
        drawn = {row.key: Drawn(row.granted, row.wait_us) for row in rows}
        return [drawn.get(ask.key) for ask in asks]


async def prune(connection: Connection) -> int:
    """Remove buckets that have been full for long."""
    return row_count(await _PRUNE.execute(connection, kept_us=KEPT // timedelta(microseconds=1)))
