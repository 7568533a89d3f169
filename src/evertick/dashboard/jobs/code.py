"""A job as JSON, as a command with curl, and as Python: what makes the same job as the form does."""

import json
import pprint
import shlex
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import quote

_WIDTH = 76


class Code(NamedTuple):
    name: str
    title: str
    text: str


def code_of(job: Mapping[str, Any], *, replaces: str | None = None) -> tuple[Code, ...]:
    """The code that creates a job; `replaces`: that replaces the job of this name."""
    return (
        Code("curl", "curl", _curl(job, replaces)),
        Code("python", "Python", _python(job, replaces)),
        Code("json", "JSON", _json(job)),
    )


def _json(job: Mapping[str, Any]) -> str:
    return json.dumps(job, indent=2, ensure_ascii=False)


def _curl(job: Mapping[str, Any], replaces: str | None) -> str:
    path, method = "jobs", "POST"
    if replaces is not None:
        path, method = f"jobs/by-name/{quote(replaces, safe='')}", "PUT"
        job = _unnamed(job)
    lines = [
        f'curl -X {method} "$EVERTICK_URL/api/v1/{path}"',
        '-H "Authorization: Bearer $EVERTICK_API_KEY"',
        '-H "Content-Type: application/json"',
        f"-d {shlex.quote(_json(job))}",
    ]
    return " \\\n  ".join(lines)


def _python(job: Mapping[str, Any], replaces: str | None) -> str:
    given = job if replaces is None else _unnamed(job)
    arguments = [f"        {name}={_literal(value, 8 + len(name) + 1)},\n" for name, value in given.items()]
    call = "create(\n" if replaces is None else f"replace(\n        {replaces!r},\n"
    return (
        "from evertick import Client\n\n"
        "with Client() as client:  # EVERTICK_URL, EVERTICK_API_KEY\n"
        f"    client.jobs.{call}{''.join(arguments)}    )"
    )


def _unnamed(job: Mapping[str, Any]) -> dict[str, Any]:
    """Without the name, which is in the path."""
    return {name: value for name, value in job.items() if name != "name"}


def _literal(value: Any, indent: int) -> str:
    """A literal whose further lines are below its beginning."""
    text = pprint.pformat(value, width=max(_WIDTH - indent, 30), sort_dicts=False)
    return text.replace("\n", "\n" + " " * indent)
