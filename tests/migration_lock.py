"""The digests of all migrations, in tests/migrations.lock: what was released is never edited, but followed by another.

`make schema` adds new migrations, and refuses a changed one.
"""

from collections.abc import Sequence
from pathlib import Path

from evertick.store.migrate import Migration

LOCK = Path(__file__).parent / "migrations.lock"


def read_lock() -> dict[str, str]:
    """The digest of each migration, by its name."""
    return dict(line.split() for line in LOCK.read_text(encoding="utf-8").splitlines())


def changed(known: Sequence[Migration], locked: dict[str, str]) -> list[str]:
    """Migrations that were edited or removed since they were locked."""
    digests = {migration.name: migration.digest for migration in known}
    return [name for name, digest in locked.items() if digests.get(name) != digest]


def write_lock(known: Sequence[Migration]) -> None:
    """Add the migrations that are new."""
    locked = read_lock()
    if edited := changed(known, locked):
        raise SystemExit(f"{', '.join(edited)}: a released migration is never edited; write a new one")
    text = "".join(f"{migration.name} {migration.digest}\n" for migration in known)
    LOCK.write_text(text, encoding="utf-8", newline="\n")
