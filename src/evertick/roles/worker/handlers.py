"""The registry of handlers: a name, a function, and how it is called."""

import asyncio
import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from evertick.domain.errors import InvalidInput
from evertick.roles.worker.binding import Binding, Misfit
from evertick.roles.worker.run import Run
from evertick.store.lanes import Leased

Function = Callable[..., Any]


class Handler:
    """One function under its name. Calling it with an attempt calls the function as its parameters ask for."""

    __slots__ = ("_binding", "_function", "is_async", "name")

    def __init__(self, name: str, function: Function) -> None:
        kinds = (inspect.isgeneratorfunction, inspect.isasyncgenfunction)
        if any(kind(_bare(function)) for kind in kinds):
            raise InvalidInput("handler", f"{name!r} yields: a handler runs to its end and returns")
        self.name = name
        self.is_async = _is_async(function)
        self._function = function
        self._binding = Binding(name, function)

    def call(self, leased: Leased, run: Run) -> Any:
        """Call the function: the result, or for an async one what is to be awaited."""
        binding = self._binding
        if binding.is_run_alone:
            return self._function(run)
        arguments = binding.arguments(leased.payload) if binding.takes_payload else {}
        if binding.run_name is not None:
            arguments[binding.run_name] = run
        return self._function(**arguments)

    def call_sync(self, leased: Leased, run: Run) -> Any:
        """Call a function that is not async, in a thread."""
        result = self.call(leased, run)
        if inspect.isawaitable(result):
            if asyncio.iscoroutine(result):
                result.close()
            raise Misfit(f"handler {self.name!r} returned {type(result).__name__}: make it `async def`")
        return result


class Handlers(Mapping[str, Handler]):
    """All handlers of a worker."""

    def __init__(self, functions: Mapping[str, Function] | None = None) -> None:
        self._handlers: dict[str, Handler] = {}
        for name, function in (functions or {}).items():
            self.add(name, function)

    def add(self, name: str, function: Function) -> None:
        if name in self._handlers:
            raise InvalidInput("handler", f"there are two handlers named {name!r}: give one of them another name")
        self._handlers[name] = Handler(name, function)

    def __getitem__(self, name: str) -> Handler:
        return self._handlers[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._handlers)

    def __len__(self) -> int:
        return len(self._handlers)

    def find(self, name: str | None) -> Handler | None:
        return None if name is None else self._handlers.get(name)

    def unknown(self, name: str | None) -> str:
        """What to say about an attempt for a handler that is not here."""
        if name is None:
            return "the job has no handler: its target is not a worker"
        known = ", ".join(sorted(self._handlers)) or "none"
        return f"this worker has no handler {name!r}; it has {known}"


def _bare(function: Function) -> Function:
    while isinstance(function, functools.partial):
        function = function.func
    return function


def _is_async(function: Function) -> bool:
    function = _bare(function)
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004 - is the call itself async?
