"""Heads of idle lanes, which move on so that a look for work stays cheap. For schedulers that hold the partitions."""

from collections.abc import Mapping
from datetime import timedelta

from evertick.store import statements
from evertick.store.statements import Connection

_SQL = statements.load("heads")

SLACK = timedelta(hours=6)
"""A head that is no further behind stays."""


async def floor(connection: Connection) -> int:
    """A seq a day ago."""
    seq: int = await _SQL["floor"].fetchval(connection)
    return seq


async def advance(connection: Connection, node: str, epochs: Mapping[int, int], seq: int, most: int) -> int:
    """Let the heads of some idle lanes move on to a seq, and say of how many."""
    tag = await _SQL["advance"].execute(
        connection,
        node=node,
        partitions=list(epochs),
        epochs=list(epochs.values()),
        seq=seq,
        slack=SLACK // timedelta(microseconds=1),
        most=most,
    )
    return int(tag.rpartition(" ")[2])
