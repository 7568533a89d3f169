"""What a tenant can leave behind in the database: each request of it a little, or none."""

import sys
from collections.abc import Mapping
from pathlib import Path

import asyncpg
import pytest

from hostile.attacks.storage import ACCEPTED_LATE, LARGE
from hostile.harness import row_of, start_harness

QUOTA_BYTES = 1_048_576
BYTES_PER_REQUEST = 8192
"""Below this, what accepted requests leave behind is not what they carry: entries of logs, which age."""
MOST_PER_REQUEST = 3 * len(LARGE["text"])
"""What they carry, with its indexes and dead rows, which do not count towards the quota."""
MOST_LATE = 16
"""Requests that are accepted after one was refused: those under way by then."""
LARGEST = ("kept_answers", "versions")
EVERYTHING = (*LARGEST, "queues_and_rules", "api_keys")
_SIZES = """
SELECT coalesce(parent.relname, child.relname)::text AS name, sum(pg_total_relation_size(child.oid))::bigint AS bytes
  FROM pg_class AS child
  LEFT JOIN pg_inherits ON inhrelid = child.oid
  LEFT JOIN pg_class AS parent ON parent.oid = inhparent
 WHERE child.relkind = 'r' AND child.relnamespace::regnamespace::text !~ '^(pg_|information_)'
 GROUP BY 1
"""


async def _sizes(connection: asyncpg.Connection) -> dict[str, int]:
    return {row["name"]: row["bytes"] for row in await connection.fetch(_SIZES)}


async def _fill(names: tuple[str, ...], url: str, folder: Path, connection: asyncpg.Connection, *, heavy: bool) -> None:
    faults = []
    async with start_harness(url, folder) as harness:
        for name in names:
            before = await _sizes(connection)
            result = await harness.attack(name, is_heavy=heavy, storage_quota_bytes=QUOTA_BYTES)
            grown = {table: size - before.get(table, 0) for table, size in (await _sizes(connection)).items()}
            total = sum(grown.values())
            largest = sorted(grown.items(), key=lambda item: -item[1])[:3]
            sys.stdout.write(f"  {total} bytes left; {largest}\n")
            faults += [f"{name}: {fault}" for fault in [*result.faults, *_left_behind(result.counts, total)]]
        assert faults == [], [row_of(harness.baseline, result) for result in harness.results]


def _left_behind(counts: Mapping[str, float], total: int) -> list[str]:
    """What is wrong with the bytes that an attack left behind."""
    accepted = sum(count for what, count in counts.items() if what.startswith("answers 2"))
    left = total / max(1, accepted)
    late = counts.get(ACCEPTED_LATE, 0)
    faults = []
    if left > MOST_PER_REQUEST:
        faults.append(f"each of {accepted:.0f} accepted requests left {left:.0f} bytes behind")
    if left > BYTES_PER_REQUEST and "answers 429" not in counts:
        faults.append(f"no quota stopped {accepted:.0f} requests that left {left:.0f} bytes each")
    if left > BYTES_PER_REQUEST and late > MOST_LATE:
        faults.append(f"{late:.0f} requests were accepted after the quota had spoken")
    return faults


@pytest.mark.parametrize(
    ("counts", "total", "words"),
    [
        ({"answers 200": 150, "answers 429": 1300, ACCEPTED_LATE: 3}, 8_300_000, None),
        ({"answers 201": 5000}, 5000 * 500, None),
        ({"answers 200": 150, "answers 429": 1300}, 30_000_000, "left 200000 bytes"),
        ({"answers 200": 150}, 8_300_000, "no quota stopped"),
        ({"answers 200": 150, "answers 429": 9, ACCEPTED_LATE: 99}, 8_300_000, "after the quota had spoken"),
    ],
)
def test_what_is_left_behind_is_judged(counts: Mapping[str, float], total: int, words: str | None) -> None:
    faults = _left_behind(counts, total)
    assert (words in faults[0]) if words else not faults


async def test_a_tenant_cannot_fill_the_database(
    database_url: str, tmp_path: Path, connection: asyncpg.Connection
) -> None:
    await _fill(LARGEST, database_url, tmp_path, connection, heavy=False)


@pytest.mark.campaign
async def test_a_tenant_cannot_fill_the_database_in_a_longer_time(
    database_url: str, tmp_path: Path, connection: asyncpg.Connection
) -> None:
    await _fill(EVERYTHING, database_url, tmp_path, connection, heavy=True)
