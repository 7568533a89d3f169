"""Finds the operation for a path: segment by segment, a fixed segment before a parameter."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from evertick.api.operations import Operation

_REST = "name"
"""The parameter that takes all segments that are left: a job's name may hold slashes."""


class Match(NamedTuple):
    """The operations at a path by their methods, and what the path says."""

    operations: Mapping[str, Operation]
    parameters: Mapping[str, str]
    path: str
    """Without empty segments."""

    @property
    def allow(self) -> str:
        return ", ".join((*self.operations, "OPTIONS"))


@dataclass(slots=True)
class _Node:
    children: dict[str, "_Node"] = field(default_factory=dict)
    parameter: str = ""
    child: "_Node | None" = None
    operations: dict[str, Operation] = field(default_factory=dict)


class Router:
    """All operations, by path and method."""

    def __init__(self, operations: Iterable[Operation]) -> None:
        self._root = _Node()
        for operation in operations:
            self._add(operation)

    def match(self, path: str) -> Match | None:
        """What is at a path. Empty segments do not count."""
        segments = [segment for segment in path.split("/") if segment]
        node, parameters = self._root, dict[str, str]()
        for place, segment in enumerate(segments):
            child = node.children.get(segment)
            if child is None:
                if node.child is None:
                    return None
                child = node.child
                is_rest = node.parameter == _REST
                parameters[node.parameter] = "/".join(segments[place:]) if is_rest else segment
                if is_rest:
                    node = child
                    break
            node = child
        if not node.operations:
            return None
        return Match(node.operations, parameters, "/" + "/".join(segments))

    def _add(self, operation: Operation) -> None:
        node = self._root
        for segment in operation.path.strip("/").split("/"):
            if not segment.startswith("{"):
                node = node.children.setdefault(segment, _Node())
                continue
            name = segment.strip("{}")
            assert node.parameter in {"", name}, f"{operation.path}: the parameter is {node.parameter} elsewhere"
            node.parameter = name
            node.child = node.child or _Node()
            node = node.child
        assert operation.method not in node.operations, f"{operation.method} {operation.path} is declared twice"
        node.operations[operation.method] = operation
