"""What a tenant can leave behind in the database: each request of it a little, or none."""

import sys
from pathlib import Path

import asyncpg
import pytest

from hostile.stage import row_of, staged

QUOTA_BYTES = 1_048_576
STORED_BYTES = 3 * QUOTA_BYTES
"""What the tables may grow by before a limit speaks: indexes and dead rows do not count towards the quota."""
LATE_BYTES = 33_554_432
"""What may be written in the second before a quota is noticed."""
BYTES_PER_REQUEST = 8192
"""Below this, what requests leave behind is not what they carry: entries of logs, which age."""
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
    async with staged(url, folder) as stage:
        for name in names:
            before = await _sizes(connection)
            verdict = await stage.attack(name, is_heavy=heavy, storage_quota_bytes=QUOTA_BYTES)
            grown = {table: size - before.get(table, 0) for table, size in (await _sizes(connection)).items()}
            requests = sum(count for what, count in verdict.seen.items() if what.startswith("answers "))
            total = sum(grown.values())
            left = total / max(1, requests)
            largest = sorted(grown.items(), key=lambda item: -item[1])[:3]
            sys.stdout.write(f"  {requests:.0f} requests, {total} bytes left, {left:.0f} by each; {largest}\n")
            faults += [f"{name}: {fault}" for fault in verdict.faults]
            is_limited = "answers 429" in verdict.seen
            if left > BYTES_PER_REQUEST and total > STORED_BYTES + LATE_BYTES * is_limited:
                faults.append(f"{name}: each of {requests:.0f} requests left {left:.0f} bytes behind: {largest}")
        assert faults == [], [row_of(stage.calmness, verdict) for verdict in stage.verdicts]


async def test_a_tenant_cannot_fill_the_database(
    database_url: str, tmp_path: Path, connection: asyncpg.Connection
) -> None:
    await _fill(LARGEST, database_url, tmp_path, connection, heavy=False)


@pytest.mark.campaign
async def test_a_tenant_cannot_fill_the_database_in_a_longer_time(
    database_url: str, tmp_path: Path, connection: asyncpg.Connection
) -> None:
    await _fill(EVERYTHING, database_url, tmp_path, connection, heavy=True)
