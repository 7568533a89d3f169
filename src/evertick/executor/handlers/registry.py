"""The registry of handlers: a name, a function, and how a payload reaches its parameters: by name, checked and
converted by their annotations.
"""

import asyncio
import functools
import inspect
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Protocol

import msgspec
from msgspec.inspect import CustomType, UnionType, type_info as inspect_type

from evertick.domain.attempt import Attempt, AttemptOutcome
from evertick.domain.errors import InvalidInput
from evertick.executor.handlers.run import DoNotRetry, Run, succeeded

Function = Callable[..., Any]
_RUN_NAMES = frozenset({"run", "_run", "_"})
_EITHER = inspect.Parameter.POSITIONAL_OR_KEYWORD


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


class Misfit(DoNotRetry):
    """The payload does not fit the handler's parameters; no retry will change that."""


class PayloadBinding:
    """What a function wants: the run, under which name, and which fields of the payload.

    The run goes to the parameter that is annotated `Run`, or is the first and called `run`; every other one is a field
    of the payload. A function without such parameters takes any payload, in `run.payload`.
    """

    def __init__(self, name: str, function: Callable[..., Any]) -> None:
        self._name = name
        self._function = function
        self.run_name: str | None = None
        self.fields: dict[str, inspect.Parameter] = {}
        self.takes_more = False
        self._is_first_positional = False
        for number, parameter in enumerate(inspect.signature(function).parameters.values()):
            self._place(number, parameter)
        self.takes_payload = bool(self.fields) or self.takes_more
        self.is_run_alone = self._is_first_positional and not self.takes_payload
        self._decoder: msgspec.json.Decoder[Any] | None = None

    def arguments(self, payload: str | None) -> dict[str, Any]:
        """The keyword arguments for a payload, given as JSON."""
        decoder = self._decoder or self._make_decoder()
        try:
            given = decoder.decode("{}" if payload is None else payload)
        except msgspec.ValidationError as error:
            raise Misfit(f"the payload does not fit handler {self._name!r}: {_explained(error)}") from None
        named = {field: value for field in self.fields if (value := getattr(given, field)) is not msgspec.UNSET}
        if self.takes_more:
            every = msgspec.json.decode(payload or "{}")
            named |= {key: value for key, value in every.items() if key not in self.fields and key != self.run_name}
        return named

    def _place(self, number: int, parameter: inspect.Parameter) -> None:
        if parameter.kind is inspect.Parameter.POSITIONAL_ONLY:
            raise InvalidInput("handler", f"{self._name!r} takes {parameter.name!r} by position only")
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            self.takes_more = True
        elif parameter.kind is inspect.Parameter.VAR_POSITIONAL:
            raise InvalidInput("handler", f"{self._name!r} takes *{parameter.name}: a payload's fields have names")
        elif self.run_name is None and _is_run(number, parameter):
            self.run_name = parameter.name
            self._is_first_positional = number == 0 and parameter.kind is _EITHER
        else:
            self.fields[parameter.name] = parameter

    def _make_decoder(self) -> msgspec.json.Decoder[Any]:
        # At the first use: what the annotations name may be defined further down in the handler's module.
        hints = _hints(self._function)
        fields = [(name, *_field(parameter, hints.get(name, Any))) for name, parameter in self.fields.items()]
        shape = msgspec.defstruct("Payload", fields, kw_only=True, forbid_unknown_fields=not self.takes_more)
        self._decoder = msgspec.json.Decoder(shape)
        return self._decoder


def _is_run(number: int, parameter: inspect.Parameter) -> bool:
    annotation = parameter.annotation
    if annotation is Run:
        return True
    if isinstance(annotation, str) and annotation.strip("\"'").rpartition(".")[2] == "Run":
        return True
    return number == 0 and annotation is inspect.Parameter.empty and parameter.name in _RUN_NAMES


def _hints(function: Callable[..., Any]) -> Mapping[str, Any]:
    try:
        return typing.get_type_hints(inspect.unwrap(function))
    except (NameError, TypeError, AttributeError):
        return {}  # imported for type checkers only: then nothing is converted


def _field(parameter: inspect.Parameter, hint: Any) -> tuple[Any, ...]:
    if not _is_convertible(hint):
        hint = Any  # the value goes in as it is
    if parameter.default is inspect.Parameter.empty:
        return (hint,)
    return hint | msgspec.UnsetType if hint is not Any else Any, msgspec.UNSET


def _is_convertible(hint: Any) -> bool:
    """Whether values of the type can be made from JSON."""
    try:
        return not _has_custom(inspect_type(hint))
    except TypeError:
        return False


def _has_custom(info: Any) -> bool:
    if isinstance(info, CustomType):
        return True
    inner = (info.types if isinstance(info, UnionType) else ()) + tuple(
        getattr(info, name) for name in ("item_type", "key_type", "value_type") if hasattr(info, name)
    )
    return any(map(_has_custom, inner))


def _explained(error: msgspec.ValidationError) -> str:
    text = str(error)
    return text[:1].lower() + text[1:].replace(" - at `$`", "").replace("`$.", "`")


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
        self._binding = PayloadBinding(name, function)

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
