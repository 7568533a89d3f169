"""Migrations that were released stay as they are: databases that have them would be refused."""

from evertick.store.migrate import Migration, migrations
from migration_lock import changed, read_lock


def test_no_released_migration_was_edited_and_each_new_one_is_locked() -> None:
    locked = read_lock()
    assert changed(migrations(), locked) == [], "write a new migration instead"
    assert list(locked) == [migration.name for migration in migrations()], "run `make schema`"


def test_what_was_edited_or_removed_is_found() -> None:
    old, new = Migration("0001_old", "SELECT 1"), Migration("0002_new", "SELECT 2")
    locked = {old.name: old.digest}
    assert changed([old, new], locked) == []
    assert changed([Migration("0001_old", "SELECT 3"), new], locked) == ["0001_old"]
    assert changed([new], locked) == ["0001_old"]
