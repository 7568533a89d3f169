"""Collects what is wrong with a document, so that its author sees every fault at once."""

import difflib
import functools
from collections.abc import Callable, Iterable, Mapping
from types import NoneType
from typing import Any, TypeAlias

from evertick.domain.errors import Fault, InvalidFields

MAX_FAULTS = 50
"""A longer list helps no reader, and hostile input must not cost work for each fault."""

MAX_SUGGESTIONS = 3
"""For one document: finding the nearest name takes as long as reading a job. The list of names is given once."""

_MAX_ECHOED = 60


class Faults:
    """The faults found so far."""

    _suggestions = MAX_SUGGESTIONS
    _are_names_listed = False

    def __init__(self) -> None:
        self.found: list[Fault] = []

    def __bool__(self) -> bool:
        return bool(self.found)

    @property
    def full(self) -> bool:
        return len(self.found) >= MAX_FAULTS

    def add(self, pointer: str, reason: str) -> None:
        if not self.full:
            self.found.append(Fault(pointer, reason))

    def add_unknown(self, parent: str, name: object, known: Iterable[str]) -> None:
        """Refuse a field that does not exist, naming the known one that was probably meant."""
        if not self.full:
            self.add(below(parent, name), "is not a known field" + self._hint(echo(name).lower(), tuple(known)))

    def _hint(self, name: str, known: tuple[str, ...]) -> str:
        if self._suggestions:
            self._suggestions -= 1
            if near := _nearest(name, known):
                return f": did you mean {near!r}?"
        if self._are_names_listed:
            return ""
        self._are_names_listed = True
        return f": known are {', '.join(known)}"

    def raise_any(self) -> None:
        if self.found:
            raise InvalidFields(self.found)


@functools.lru_cache(maxsize=1024)
def _nearest(name: str, known: tuple[str, ...]) -> str | None:
    return next(iter(difflib.get_close_matches(name, known, n=1)), None)


_Check: TypeAlias = Callable[[Mapping[Any, Any], str, Faults], None]
_MAX_CACHED_MEMBERS = 16


def accepted_once(check: _Check) -> _Check:
    """Cache which small mappings pass a check: jobs that are created together mostly have the same ones."""

    @functools.lru_cache(maxsize=4096)
    def passes(items: tuple[tuple[Any, Any], ...]) -> bool:
        faults = Faults()
        check(dict(items), "", faults)
        return not faults

    @functools.wraps(check)
    def cached(value: Mapping[Any, Any], at: str, faults: Faults) -> None:
        if not value:
            return
        try:
            if len(value) <= _MAX_CACHED_MEMBERS and passes(tuple(value.items())):
                return
        except TypeError:
            pass  # a member that cannot be hashed, which is no string
        check(value, at, faults)

    return cached


def below(parent: str, name: object) -> str:
    """The pointer of a member or an item, escaped as RFC 6901 asks."""
    return f"{parent}/{echo(name).replace('~', '~0').replace('/', '~1')}"


def echo(name: object) -> str:
    """A caller's own text, safe to answer with: never a megabyte, and always encodable."""
    text = str(name)[: _MAX_ECHOED + 1].encode(errors="replace").decode()
    return text if len(text) <= _MAX_ECHOED else text[:_MAX_ECHOED] + "…"


def kind_of(value: object) -> str:
    """What JSON calls the value, for "must be a string, not …"."""
    return _KINDS.get(type(value), f"a Python {type(value).__name__}")


_KINDS: dict[type, str] = {
    NoneType: "null",
    bool: "a boolean",
    int: "a number",
    float: "a number",
    str: "a string",
    list: "an array",
    dict: "an object",
}
