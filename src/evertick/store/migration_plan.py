"""What a migration would do, statement by statement, with the lock that each takes on a table that is in use.

The lock decides how an upgrade looks to processes that run meanwhile, and it is held until all migrations are applied.
The plan reads the text alone: what a function or a DO block does inside is not seen, and is said to be unknown.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from evertick.store.migrate import Migration

NO_LOCK = "locks nothing that is in use"
UNKNOWN = "locks whatever its code uses"

_TOKEN = re.compile(
    r"""
      (?P<comment> --[^\n]* | /\*.*?\*/ )
    | '(?:[^']|'')*' | "(?:[^"]|"")*" | (?P<tag>\$\w*\$).*?(?P=tag)
    | (?P<end> ; )
    """,
    re.VERBOSE | re.DOTALL,
)
_NAME = r"(?:IF (?:NOT )?EXISTS )?(?:ONLY )?\"?(?P<table>[\w.]+)"
_WAITS_FOR_NOTHING = "SHARE UPDATE EXCLUSIVE"  # neither reads nor writes wait for it
_WAIT_FOR_IT = {
    "ACCESS EXCLUSIVE": "reads and writes wait",
    "SHARE ROW EXCLUSIVE": "writes wait",
    "SHARE": "writes wait",
    _WAITS_FOR_NOTHING: "neither reads nor writes wait",
    "ROW EXCLUSIVE": "neither reads nor writes wait, except for the same rows",
}

_LOCKS: tuple[tuple[str, str | None], ...] = (
    (r"CREATE (?:UNLOGGED )?TABLE \S.* PARTITION OF (?P<table>[\w.]+)", "ACCESS EXCLUSIVE"),
    (r"CREATE (?:UNLOGGED )?TABLE ", None),
    (r"CREATE (?:UNIQUE )?INDEX CONCURRENTLY .*? ON (?:ONLY )?(?P<table>[\w.]+)", _WAITS_FOR_NOTHING),
    (r"CREATE (?:UNIQUE )?INDEX (?:.*? )?ON (?:ONLY )?(?P<table>[\w.]+)", "SHARE"),
    (rf"CREATE (?:CONSTRAINT )?TRIGGER .*? ON {_NAME}", "SHARE ROW EXCLUSIVE"),
    (r"CREATE (?:TYPE|SEQUENCE|SCHEMA|EXTENSION|DOMAIN) ", None),
    (r"(?:CREATE|CREATE OR REPLACE|DROP|ALTER) (?:FUNCTION|PROCEDURE) ", None),
    (r"ALTER (?:TYPE|SEQUENCE|ROLE|DATABASE) ", None),
    (
        rf"ALTER TABLE {_NAME}\"? (?:VALIDATE|ATTACH PARTITION|ALTER (?:COLUMN )?\w+ SET STATISTICS|SET \()",
        _WAITS_FOR_NOTHING,
    ),
    (rf"ALTER TABLE {_NAME}\"? ADD (?:CONSTRAINT \w+ )?FOREIGN KEY", "SHARE ROW EXCLUSIVE"),
    (rf"ALTER TABLE {_NAME}", "ACCESS EXCLUSIVE"),
    (r"ALTER INDEX ", _WAITS_FOR_NOTHING),
    (r"DROP INDEX CONCURRENTLY ", _WAITS_FOR_NOTHING),
    (rf"(?:DROP TABLE|TRUNCATE(?: TABLE)?) {_NAME}", "ACCESS EXCLUSIVE"),
    (r"DROP INDEX ", "ACCESS EXCLUSIVE"),
    (r"DROP TYPE ", None),
    (rf"COMMENT ON TABLE {_NAME}", _WAITS_FOR_NOTHING),
    (rf"(?:INSERT INTO|UPDATE|DELETE FROM) {_NAME}", "ROW EXCLUSIVE"),
)
_PATTERNS = [(re.compile(pattern, re.IGNORECASE), lock) for pattern, lock in _LOCKS]
_CREATED = re.compile(rf"CREATE (?:UNLOGGED )?TABLE {_NAME}", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Step:
    """One statement of a migration, and what it locks, in words."""

    migration: str
    statement: str
    lock: str


def steps(waiting: Sequence[Migration]) -> Iterator[Step]:
    """The statements of migrations in their order. A table that one of them creates is not in use yet."""
    created: set[str] = set()
    for migration in waiting:
        for statement in statements(migration.text):
            yield Step(migration.name, statement, lock_of(statement, created))
            if new := _CREATED.match(_flat(statement)):
                created.add(new["table"].lower())


def statements(text: str) -> list[str]:
    """The statements of a text, each with the comments before it, without the semicolon."""
    ends = [found.start() for found in _TOKEN.finditer(text) if found["end"]]
    starts = [0, *(end + 1 for end in ends)]
    parts = (text[start:end].strip() for start, end in zip(starts, [*ends, len(text)], strict=True))
    return [part for part in parts if _flat(part)]


def lock_of(statement: str, created: set[str] | frozenset[str] = frozenset()) -> str:
    """The lock that a statement takes, and who waits for it."""
    flat = _flat(statement)
    for pattern, lock in _PATTERNS:
        found = pattern.match(flat)
        if found is None or (lock == _WAITS_FOR_NOTHING and _has_actions(flat)):
            continue
        table = found.groupdict().get("table")
        if lock is None or (table and table.lower() in created):
            return NO_LOCK
        return f"locks {f'{table} ' if table else ''}{lock}: {_WAIT_FOR_IT[lock]}"
    return UNKNOWN


def _has_actions(flat: str) -> bool:
    """Whether an ALTER TABLE has several actions: the strongest lock of them counts."""
    return flat.upper().startswith("ALTER TABLE") and "," in re.sub(r"\([^()]*\)", "", flat)


def _flat(statement: str) -> str:
    """Without comments, and with single spaces."""
    return " ".join(_TOKEN.sub(lambda found: " " if found["comment"] else found[0], statement).split())
