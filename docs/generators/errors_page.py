"""`docs/reference/errors.md`: every problem of the API, and every exception that a program may catch."""

import importlib
import pkgutil
from collections.abc import Iterable, Iterator
from typing import Any

import evertick
from evertick.api.problems import Kind
from evertick.domain.errors import EvertickError
from evertick.domain.limits import QuotaName

_INTRO = """\
# Errors

<!-- Generated from api/problems.py and the exceptions: edit there, then run `python docs/generate.py`. -->

## Problems of the HTTP API

Every error is an RFC 9457 problem of the media type `application/problem+json`. `type` is for programs: the word below
after `urn:evertick:problem:`. `detail` is for people. `request_id` is in the server's log. `errors` lists all faults of
the input, with a JSON pointer to each. [The guide](../http-api.md#errors) has an example."""

_QUOTAS = """\
A problem `over-quota` names the quota in its field `quota`, and `Retry-After` says when to try again.
[Quotas](../http-api.md#quotas) tells what each limits:"""

_EXCEPTIONS = """\
## Exceptions in Python

All are subclasses of `evertick.EvertickError`, so that one `except` catches them all. Indentation shows the base class.
`ApiError` and those below it come from `Client` and `AsyncClient`; the others from an `App`, from a `Schedule`, from a
receiver, or from a process that cannot start. A handler raises `DoNotRetry` or `RetryLater` to say what follows; any
other exception of a handler is a failure, which is retried as its job says."""


def errors_page() -> str:
    for module in pkgutil.walk_packages(evertick.__path__, "evertick."):
        # Those of a framework need a project of it, and have no exceptions of their own.
        if not module.name.endswith("__main__") and not module.name.startswith("evertick.contrib."):
            importlib.import_module(module.name)
    exceptions = "\n".join(["| exception | module | means |", "|---|---|---|", *_tree(EvertickError, 0)])
    quotas = ", ".join(f"`{name}`" for name in QuotaName)
    return f"{_INTRO}\n\n{_problems()}\n\n{_QUOTAS}\n\n{quotas}\n\n{_EXCEPTIONS}\n\n{exceptions}\n"


def _problems() -> str:
    rows = [f"| {kind.status} | `{kind.slug}` | {kind.title} |" for kind in Kind]
    return "\n".join(["| status | type | title |", "|---|---|---|", *rows])


def _tree(kind: type, depth: int) -> Iterator[str]:
    yield _row(kind, depth)
    for below in sorted(_below(kind), key=lambda each: (each.__module__, each.__name__)):
        yield from _tree(below, depth + 1)


def _below(kind: type) -> Iterable[Any]:
    return [each for each in kind.__subclasses__() if each.__module__.startswith("evertick.")]


def _row(kind: type, depth: int) -> str:
    text = " ".join((kind.__doc__ or "").partition("\n\n")[0].split())
    return f"| {'&emsp;' * depth}`{kind.__name__}` | `{kind.__module__}` | {text} |"
