"""The snapshot of the schema in the repository is the sum of the migrations."""

import pytest

import postgres
import schema_dump


async def test_the_snapshot_is_what_the_migrations_make(postgres_server: postgres.Server, database_url: str) -> None:
    if postgres_server.version != postgres.EMBEDDED:
        pytest.skip("versions of pg_dump write differently: the snapshot is of the embedded one")
    made = schema_dump.dump(postgres_server.embedded, database_url)
    assert made == schema_dump.SNAPSHOT.read_text(encoding="utf-8"), "run `make schema`, and look at what changed"
