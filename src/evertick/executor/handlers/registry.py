"""The registry of handlers: a name, a function, and how it is called."""

import asyncio
import functools
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Protocol

from evertick.domain.attempt import Attempt, AttemptOutcome
from evertick.domain.errors import InvalidInput
from evertick.executor.handlers.binding import Binding, Misfit
from evertick.executor.handlers.results import succeeded
from evertick.executor.handlers.run import Run

Function = Callable[..., Any]


class Handler(Protocol):
    """What an attempt is executed with."""

    @property
    def is_async(self) -> bool: ...

    def call(self, attempt: Attempt, started_at: datetime) -> Any:
        """Do the work: the result, or for an async handler what is to be awaited."""

    def outcome_of(self, value: Any) -> AttemptOutcome:
        """The outcome that a result other than None means."""

    def deadline_seconds(self, attempt: Attempt) -> float:
        """After how long the executor stops it; longer than the attempt's timeout if the handler keeps that itself."""


class Registry(Protocol):
    """All handlers of an executor."""

    @property
    def names(self) -> Sequence[str]:
        """What attempts wait for that were put back and can be run here."""

    def find(self, name: str | None) -> Handler | None: ...

    def kinds(self) -> set[bool]:
        """Of the handlers that there are: whether they are async."""


class FunctionHandler:
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

    def call(self, attempt: Attempt, started_at: datetime) -> Any:
        binding = self._binding
        run = Run(attempt, started_at)
        if binding.is_run_alone:
            result = self._function(run)
        else:
            arguments = binding.arguments(attempt.payload) if binding.takes_payload else {}
            if binding.run_name is not None:
                arguments[binding.run_name] = run
            result = self._function(**arguments)
        if not self.is_async and inspect.isawaitable(result):
            if asyncio.iscoroutine(result):
                result.close()
            raise Misfit(f"handler {self.name!r} returned {type(result).__name__}: make it `async def`")
        return result

    def outcome_of(self, value: Any) -> AttemptOutcome:
        return succeeded(value)

    def deadline_seconds(self, attempt: Attempt) -> float:
        return attempt.timeout_seconds


class Handlers(Mapping[str, FunctionHandler]):
    """The functions of a worker, by the names that jobs call them by."""

    def __init__(self, functions: Mapping[str, Function] | None = None) -> None:
        self._handlers: dict[str, FunctionHandler] = {}
        for name, function in (functions or {}).items():
            self.add(name, function)

    def add(self, name: str, function: Function) -> None:
        if name in self._handlers:
            raise InvalidInput("handler", f"there are two handlers named {name!r}: give one of them another name")
        self._handlers[name] = FunctionHandler(name, function)

    def __getitem__(self, name: str) -> FunctionHandler:
        return self._handlers[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._handlers)

    def __len__(self) -> int:
        return len(self._handlers)

    def find(self, name: str | None) -> FunctionHandler | None:
        return None if name is None else self._handlers.get(name)

    @property
    def names(self) -> list[str]:
        return sorted(self._handlers)

    def kinds(self) -> set[bool]:
        return {handler.is_async for handler in self._handlers.values()}


def _bare(function: Function) -> Function:
    while isinstance(function, functools.partial):
        function = function.func
    return function


def _is_async(function: Function) -> bool:
    function = _bare(function)
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004 - is the call itself async?
