"""Tests use what is public, and replace none of our functions: faults come by ports, pools and real servers."""

import ast
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).parents[1]
PUBLIC = {"_asdict", "_exit", "_fields", "_make", "_replace"}
"""Documented names that begin with an underscore: of named tuples, and of `os`."""
EXCEPTIONS = {
    "strategies.py": "zoneinfo shows the changes of a zone nowhere else",
    "store/test_connections.py": "asyncpg shows the socket of a connection nowhere else",
}


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name not in PUBLIC


def intrusions(source: str) -> Iterator[str]:
    tree = ast.parse(source)
    ours = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "evertick"
        for alias in node.names
    }
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=value, attr=name) if is_private(name):
                if not (isinstance(value, ast.Name) and value.id in {"self", "cls"}):
                    yield f"line {node.lineno}: {name} is private"
            case ast.ImportFrom(names=names):
                yield from (f"line {node.lineno}: {each.name} is private" for each in names if is_private(each.name))
            case ast.Call(func=ast.Name(id="getattr" | "setattr"), args=[_, ast.Constant(value=str(name)), *_]):
                if is_private(name):
                    yield f"line {node.lineno}: {name} is private"
            case ast.Call(func=ast.Attribute(attr="setattr"), args=[target, *names]):
                yield from (f"line {node.lineno}: {fault}" for fault in _patched(target, names, ours))


def _patched(target: ast.expr, names: list[ast.expr], ours: set[str]) -> Iterator[str]:
    """Constants of ours may be set in a test, and whatever belongs to others; functions and classes may not."""
    match target, names:
        case ast.Constant(value=str(path)), _ if path.startswith("evertick."):
            name = path.rpartition(".")[2]
        case ast.Name(id=module), [ast.Constant(value=str(name)), *_] if module in ours:
            pass
        case _:
            return
    if is_private(name) or not name.isupper():
        yield f"{name} is no public constant"


def test_no_test_reaches_into_private_parts_or_replaces_our_functions() -> None:
    found = {
        str(path.relative_to(TESTS)): list(intrusions(path.read_text(encoding="utf-8")))
        for path in sorted(TESTS.rglob("*.py"))
    }
    assert len(found) > 100
    assert {path: lines for path, lines in found.items() if lines and path not in EXCEPTIONS} == {}
    assert [path for path in EXCEPTIONS if not found[path]] == [], "no exception any more"


def test_the_checker_sees_what_it_should() -> None:
    for fault in (
        "node.state._timers",
        "from evertick.domain.rule import _make_ticks",
        "getattr(connection, '_transport')",
        "from evertick.roles.scheduler import planning\nmonkeypatch.setattr(planning, 'make_plan', counted)",
        "from evertick.usecases import transactions\nmonkeypatch.setattr(transactions, '_LONG_SECONDS', 1)",
        "monkeypatch.setattr('evertick.executor.executor.lease', None)",
    ):
        assert list(intrusions(fault)), fault
    for fine in (
        "self._timers",
        "row._replace(seq=1)",
        "from evertick.version import __version__",
        "from evertick.roles.scheduler import loading\nmonkeypatch.setattr(loading, 'POLL_SECONDS', 0)",
        "monkeypatch.setattr(asyncpg.Pool, 'fetch', hooked)",
    ):
        assert not list(intrusions(fine)), fine
