"""The schema as SQL, for people who look at what a migration changes: `make schema` writes docs/schema.sql."""

import re
from pathlib import Path
from urllib.parse import urlsplit

from evertick.store.server.embedded import EmbeddedServer
from evertick.store.server.programs import find_programs

SNAPSHOT = Path(__file__).parents[1] / "docs" / "schema.sql"
HEAD = (
    "-- The schema that all migrations together make. Generated: run `make schema` after a change of the migrations.\n"
)
_OPTIONS = ("--schema-only", "--no-owner", "--no-privileges", "--schema=evertick")
# Partitions of days are named after the day on which the migrations were run.
_DAYS = (
    "--exclude-table=evertick.attempts_2*",
    "--exclude-table=evertick.outcomes_2*",
    "--exclude-table=evertick.events_2*",
)
_NOISE = re.compile(r"^(--.*|SET .*|SELECT pg_catalog\.set_config.*|\\(un)?restrict .*)$\n?", re.MULTILINE)


def dump(server: EmbeddedServer, database_url: str) -> str:
    """The schema of a database on an embedded server, without what differs between two runs."""
    name = urlsplit(database_url).path.removeprefix("/")
    programs = find_programs(server.data_dir)
    done = programs.run(
        "pg_dump", *_OPTIONS, *_DAYS, server.url.replace("/evertick?", f"/{name}?"), cwd=server.data_dir
    )
    if done.code:
        raise RuntimeError(done.output)
    return HEAD + "\n" + re.sub(r"\n{3,}", "\n\n", _NOISE.sub("", done.output)).strip() + "\n"
