"""Writes docs/schema.sql, the schema that all migrations make, and locks new ones. Run it with `make schema`."""  # noqa: INP001  (a script beside the pages, not a package)

import asyncio
import os
import sys
import tempfile
from pathlib import Path

from evertick.store.migrate import migrations
from evertick.store.server.embedded import EmbeddedServer
from evertick.wiring import migrate_database

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from migration_lock import write_lock
from schema_dump import SNAPSHOT, dump


def main() -> None:
    write_lock(migrations())
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)  # PostgreSQL does not run as root, and has to reach its directory
        server = EmbeddedServer(Path(folder) / f"schema-{os.getpid()}")
        url = server.start()
        try:
            asyncio.run(migrate_database(url))
            SNAPSHOT.write_text(dump(server, url), encoding="utf-8", newline="\n")
        finally:
            server.stop()


if __name__ == "__main__":
    main()
