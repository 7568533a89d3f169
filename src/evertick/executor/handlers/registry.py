"""The registry of handlers: a name, a function, and how a payload reaches its parameters: by name, checked and
converted by their annotations.
"""

import asyncio
import functools
import inspect
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, Protocol

import msgspec
from msgspec.inspect import CustomType, UnionType, type_info as inspect_type

from evertick.domain.attempt import SUCCEEDED, Attempt, AttemptOutcome
from evertick.domain.errors import InvalidInput
from evertick.domain.limits import MAX_OUTPUT_BYTES
from evertick.executor.handlers.hooks import Hooks
from evertick.executor.handlers.middleware import Middleware, call_async, call_in_thread
from evertick.executor.handlers.run import DoNotRetry, HandlerCall, Run, dumped, is_model, succeeded

Function = Callable[..., Any]
_RUN_NAMES = frozenset({"run", "_run", "_"})
_EITHER = inspect.Parameter.POSITIONAL_OR_KEYWORD


class Handler(Protocol):
    """What an attempt is executed with."""

    @property
    def is_async(self) -> bool: ...

    @property
    def start_cost(self) -> float:
        """What its start costs in a turn of the event loop, where turns are limited."""

    @property
    def begin(self) -> Callable[[Sequence[Any]], None] | None:
        """If there is one, it begins many attempts at once, given as `Running`; each is told how it ended."""

    def call(self, attempt: Attempt, started_at: datetime, call: HandlerCall) -> Any:
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

    def find(self, attempt: Attempt) -> Handler | None: ...

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
        signature = inspect.signature(function)
        self.run_name = run_parameter(signature)
        self.fields: dict[str, inspect.Parameter] = {}
        self.takes_more = False
        self._is_first_positional = False
        for number, parameter in enumerate(signature.parameters.values()):
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

    def check(self, payload: str | None) -> None:
        """Raise Misfit for a payload, given as JSON, that does not fit the parameters."""
        if self.takes_payload:
            self.arguments(payload)

    def _place(self, number: int, parameter: inspect.Parameter) -> None:
        if parameter.kind is inspect.Parameter.POSITIONAL_ONLY:
            raise InvalidInput("handler", f"{self._name!r} takes {parameter.name!r} by position only")
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            self.takes_more = True
        elif parameter.kind is inspect.Parameter.VAR_POSITIONAL:
            raise InvalidInput("handler", f"{self._name!r} takes *{parameter.name}: a payload's fields have names")
        elif parameter.name == self.run_name:
            self._is_first_positional = number == 0 and parameter.kind is _EITHER
        else:
            self.fields[parameter.name] = parameter

    def _make_decoder(self) -> msgspec.json.Decoder[Any]:
        # At the first use: what the annotations name may be defined further down in the handler's module.
        hints = _hints(self._function)
        fields = [(name, *_field(parameter, hints.get(name, Any))) for name, parameter in self.fields.items()]
        shape = msgspec.defstruct("Payload", fields, kw_only=True, forbid_unknown_fields=not self.takes_more)
        self._decoder = msgspec.json.Decoder(shape, dec_hook=_from_json)
        return self._decoder


def _is_run(number: int, parameter: inspect.Parameter) -> bool:
    annotation = parameter.annotation
    if annotation is Run:
        return True
    if isinstance(annotation, str) and annotation.strip("\"'").rpartition(".")[2] == "Run":
        return True
    return number == 0 and annotation is inspect.Parameter.empty and parameter.name in _RUN_NAMES


def run_parameter(signature: inspect.Signature) -> str | None:
    """The name of the parameter that gets the run."""
    placed = enumerate(signature.parameters.values())
    return next((parameter.name for number, parameter in placed if _is_run(number, parameter)), None)


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
        return not is_model(info.cls)
    inner = (info.types if isinstance(info, UnionType) else ()) + tuple(
        getattr(info, name) for name in ("item_type", "key_type", "value_type") if hasattr(info, name)
    )
    return any(map(_has_custom, inner))


def _from_json(kind: type, value: Any) -> Any:
    # Strings are also what JSON has for instants and numbers of arbitrary precision.
    return kind.model_validate(value) if is_model(kind) else value  # type: ignore[attr-defined]


def to_json(value: Any) -> Any:
    """A payload of Python objects as JSON values: what handlers' parameters are made from again."""
    try:
        return msgspec.to_builtins(value, enc_hook=dumped)
    except (TypeError, RecursionError) as error:
        raise InvalidInput("payload", f"cannot be written as JSON: {error}") from None


def _explained(error: msgspec.ValidationError) -> str:
    text = str(error)
    return text[:1].lower() + text[1:].replace(" - at `$`", "").replace("`$.", "`")


@dataclass(slots=True)
class ResultLimit:
    """The longest result that is kept, in bytes of JSON. 0: none is, nor its beginning."""

    max_bytes: int = MAX_OUTPUT_BYTES


class FunctionHandler:
    """One function under its name. Calling it with an attempt calls the function as its parameters ask for."""

    __slots__ = ("_binding", "_function", "_middleware", "_result_limit", "is_async", "keeps_result", "name")
    start_cost = 1.0
    begin = None

    def __init__(
        self,
        name: str,
        function: Function,
        middleware: Sequence[Middleware] = (),
        result_limit: ResultLimit | None = None,
    ) -> None:
        kinds = (inspect.isgeneratorfunction, inspect.isasyncgenfunction)
        if any(kind(_bare(function)) for kind in kinds):
            raise InvalidInput("handler", f"{name!r} yields: a handler runs to its end and returns")
        self.name = name
        self.is_async = _is_async(function)
        self._function = function
        self.keeps_result = True
        self._middleware = middleware
        self._result_limit = result_limit or ResultLimit()
        self._binding = PayloadBinding(name, function)

    @property
    def binding(self) -> PayloadBinding:
        return self._binding

    def call(self, attempt: Attempt, started_at: datetime, call: HandlerCall | None = None) -> Any:
        run = Run(attempt, started_at, call)
        if not self._middleware:
            return self._call(attempt, run)
        inner = partial(self._call, attempt, run)
        if self.is_async:
            return call_async(self._middleware, run, inner)
        return call_in_thread(self._middleware, run, inner, None if call is None else call.loop)

    def _call(self, attempt: Attempt, run: Run) -> Any:
        binding = self._binding
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
        max_bytes = self._result_limit.max_bytes if self.keeps_result else 0
        return succeeded(value, self.name, max_bytes) if max_bytes else SUCCEEDED

    def read_output(self, output: Any) -> Any:
        """What the function returned, from the JSON that was kept, by the annotation of its result."""
        hint = _hints(self._function).get("return", Any)
        if hint is Any or not _is_convertible(hint):
            return output
        try:
            return msgspec.convert(output, hint, str_keys=True, dec_hook=_from_json)
        except msgspec.ValidationError as error:
            text = f"of handler {self.name!r} does not fit its annotation: {_explained(error)}"
            raise InvalidInput("result", text) from None

    def deadline_seconds(self, attempt: Attempt) -> float:
        return attempt.timeout_seconds


class Handlers(Mapping[str, FunctionHandler]):
    """The functions of a worker, by the names that jobs call them by."""

    def __init__(self, functions: Mapping[str, Function] | None = None) -> None:
        self._handlers: dict[str, FunctionHandler] = {}
        self.middleware: list[Middleware] = []
        self.hooks = Hooks()
        self.result_limit = ResultLimit()
        for name, function in (functions or {}).items():
            self.add(name, function)

    def add(self, name: str, function: Function) -> None:
        if name in self._handlers:
            raise InvalidInput("handler", f"there are two handlers named {name!r}: give one of them another name")
        self._handlers[name] = FunctionHandler(name, function, self.middleware, self.result_limit)

    def add_middleware(self, function: Function) -> None:
        try:
            inspect.signature(function).bind(None, None)
        except (TypeError, ValueError):
            text = f"{Middleware(function).name!r} must take two arguments, the run and call_next"
            raise InvalidInput("middleware", text) from None
        self.middleware.append(Middleware(function))

    def unwrapped(self) -> Iterator[str]:
        """What middleware does not wrap, in words."""
        names = ", ".join(name for name, handler in self._handlers.items() if handler.is_async)
        for each in self.middleware:
            if names and not each.is_async:
                yield f"middleware {each.name!r} does not wrap async handlers ({names}): one that is async wraps all"

    def __getitem__(self, name: str) -> FunctionHandler:
        return self._handlers[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._handlers)

    def __len__(self) -> int:
        return len(self._handlers)

    def find(self, attempt: Attempt) -> FunctionHandler | None:
        return None if attempt.handler is None else self.named(attempt.handler)

    def named(self, name: str) -> FunctionHandler | None:
        return self._handlers.get(name)

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
