"""The domain may not act: import-linter bans the modules, this bans what hides inside allowed ones."""

import ast
from collections.abc import Iterator
from pathlib import Path

import evertick.domain

BANNED_CALLS = {"breakpoint", "eval", "exec", "hash", "id", "input", "open", "print", "__import__"}
BANNED_ATTRIBUTES = {"now", "utcnow", "today", "perf_counter", "monotonic"}
DOMAIN = sorted(Path(evertick.domain.__path__[0]).rglob("*.py"))


def impurities(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Call(func=ast.Name(id=name)) if name in BANNED_CALLS:
                yield f"line {node.lineno}: {name}() reads or writes outside its arguments"
            case ast.Call(func=ast.Attribute(attr=name)) if name in BANNED_ATTRIBUTES:
                yield f"line {node.lineno}: .{name}() reads a clock"
            case ast.AsyncFunctionDef() | ast.Await() | ast.Global():
                yield f"line {node.lineno}: {type(node).__name__}"


def test_no_domain_module_reads_a_clock_or_does_io() -> None:
    found = {str(path): list(impurities(path.read_text(encoding="utf-8"))) for path in DOMAIN}
    assert DOMAIN
    assert {path: lines for path, lines in found.items() if lines} == {}


def test_the_checker_sees_what_it_should() -> None:
    assert list(impurities("from datetime import datetime\nx = datetime.now()"))
    assert list(impurities("open('f')"))
    assert list(impurities("async def f(): ..."))
    assert list(impurities("hash('differs between processes')"))
    assert not list(impurities("def now(): return clock_at"))
