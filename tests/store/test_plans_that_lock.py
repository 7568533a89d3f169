"""Guards: a statement that locks rows chooses no partitions when it is done with that.

PostgreSQL 18 may use freed memory then (decision 35). So each statement that does both is known here.
"""

import re
from importlib import resources
from typing import Any

import asyncpg

from evertick.store import statements
from plans import nodes, plan_of

LOOK_UP_FIRST = {
    "consumers.claim",
    "consumers.hand_over",
    "consumers.release",
    "lanes.mark_started",
    "lanes.put_back",
    "orphans.drop_ended",
    "outcomes.record",
    "pulls.extend_all",
    "pulls.release",
    "retention.prune_requested_runs",
    "retention.purge_jobs",
    "smears.locked",
}
"""All that they look up in partitions they have before the last row is locked."""

FILES = [file.name.removesuffix(".sql") for file in resources.files("evertick.store").joinpath("sql").iterdir()]
_CHOICE = re.compile(r"\(\(*(seq|partition|position)\)? (=|<|>|<=|>=) ")
"""A comparison of a partition key. That of a row with it is none: the server chooses nothing by it."""


def locks(plan: dict[str, Any]) -> bool:
    return any(node["Node Type"] == "LockRows" for node in nodes(plan))


def chooses(plan: dict[str, Any]) -> bool:
    """Whether partitions are chosen while the statement runs."""
    return any(
        _CHOICE.search(child.get("Index Cond", "") + child.get("Filter", ""))
        for node in nodes(plan)
        if node["Node Type"] in {"Append", "Merge Append"}
        for child in nodes(node)
    )


async def test_a_statement_that_locks_and_chooses_partitions_is_known(connection: asyncpg.Connection) -> None:
    both = set()
    for statement in (statement for file in FILES for statement in statements.load(file).values()):
        if "ANALYZE" in statement.text:
            continue  # has no plan
        plan = await plan_of(connection, statement)
        if locks(plan) and chooses(plan):
            both.add(statement.name)
    assert both <= LOOK_UP_FIRST


async def test_a_lookup_beside_a_lock_is_noticed(connection: asyncpg.Connection) -> None:
    careless = statements.parse(
        "careless",
        "-- name: lock\nSELECT lease_id FROM leases WHERE worker = :worker::text AND EXISTS (SELECT FROM attempts"
        " WHERE attempts.lane_id = leases.lane_id AND attempts.seq = leases.first_seq) FOR UPDATE OF leases",
    )
    plan = await plan_of(connection, careless["lock"])
    assert locks(plan)
    assert chooses(plan)
