"""Decorated functions: they stay as they were, and can be submitted with their own parameters, for type checkers too.

    await send_invoice.submit("c1")
    await send_invoice.submit(customer="c1", delay="3d")
    await send_invoice.options(max_retries=5, queue="billing").submit(customer="c1")

`delay`, `at`, `connection` and `idempotency_key` may stand beside the parameters; other fields of the job go into
`options`. A parameter of the function with one of these names gets the value: then only `options` reaches the field.
"""

import inspect
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from datetime import datetime, timedelta
from difflib import get_close_matches
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Generic,
    ParamSpec,
    Protocol,
    TypeAlias,
    TypeVar,
    Unpack,
    cast,
    overload,
)

from evertick.contract.job import JobFields, JobPolicies
from evertick.domain.errors import InvalidInput
from evertick.executor.handlers.registry import run_parameter
from evertick.executor.handlers.run import Run

if TYPE_CHECKING:
    from evertick.sdk.submitting import Submitted, SubmittedSync

Called = ParamSpec("Called")
Taken = ParamSpec("Taken")
Returned = TypeVar("Returned")
_Returned_co = TypeVar("_Returned_co", covariant=True)
_Result_co = TypeVar("_Result_co", covariant=True)
Delay: TypeAlias = str | timedelta
INLINE = ("delay", "at", "connection", "idempotency_key")


class DeclaredFields(JobPolicies, total=False):
    """What a decorator takes beside the schedule and the name."""

    payload: Any


class SubmitOptions(JobPolicies, total=False):
    """What `submit` of an app takes beside handler and payload, and `options` of a function."""

    name: str | None
    delay: Delay | None
    at: datetime | None
    queue: str | None
    connection: Any
    idempotency_key: str | None


def check_options(options: Mapping[str, Any]) -> None:
    """Refuse an option that `submit` does not have, and name the one that was probably meant."""
    known = [*SubmitOptions.__annotations__]
    for name in options:
        if name not in SubmitOptions.__annotations__ and name not in JobFields.__annotations__:
            near = get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(known)}"
            raise InvalidInput(name, f"is not a known option: {hint}")


class Submits(Protocol[Taken, _Result_co]):
    """Submits a function with its parameters."""

    @overload
    def submit(self, *args: Taken.args, **kwargs: Taken.kwargs) -> "Awaitable[Submitted[_Result_co]]": ...
    @overload
    def submit(
        self, *args: Any, delay: Delay, connection: Any = ..., **kwargs: Any
    ) -> "Awaitable[Submitted[_Result_co]]": ...
    @overload
    def submit(
        self, *args: Any, at: datetime, connection: Any = ..., **kwargs: Any
    ) -> "Awaitable[Submitted[_Result_co]]": ...
    @overload
    def submit(self, *args: Any, connection: object, **kwargs: Any) -> "Awaitable[Submitted[_Result_co]]": ...
    @overload
    def submit(self, *args: Any, idempotency_key: str, **kwargs: Any) -> "Awaitable[Submitted[_Result_co]]": ...

    @overload
    def submit_sync(self, *args: Taken.args, **kwargs: Taken.kwargs) -> "SubmittedSync[_Result_co]": ...
    @overload
    def submit_sync(
        self, *args: Any, delay: Delay, connection: Any = ..., **kwargs: Any
    ) -> "SubmittedSync[_Result_co]": ...
    @overload
    def submit_sync(
        self, *args: Any, at: datetime, connection: Any = ..., **kwargs: Any
    ) -> "SubmittedSync[_Result_co]": ...
    @overload
    def submit_sync(self, *args: Any, connection: object, **kwargs: Any) -> "SubmittedSync[_Result_co]": ...
    @overload
    def submit_sync(self, *args: Any, idempotency_key: str, **kwargs: Any) -> "SubmittedSync[_Result_co]": ...


class HandlerFunction(Submits[Taken, _Result_co], Protocol[Called, Taken, _Returned_co, _Result_co]):
    """A function that an app's decorator was applied to: the function itself. An async one returns a coroutine."""

    __name__: str
    __qualname__: str

    def __call__(self, *args: Called.args, **kwargs: Called.kwargs) -> _Returned_co: ...

    def options(self, **options: Unpack[SubmitOptions]) -> Submits[Taken, _Result_co]:
        """The same with fields of the job: when it runs, its retries, its queue, …"""


class Decorator(Protocol):
    """Declares a function. The run, where it is the first parameter, is not submitted."""

    @overload
    def __call__(
        self, function: Callable[Concatenate[Run, Taken], Coroutine[Any, Any, Returned]], /
    ) -> HandlerFunction[Concatenate[Run, Taken], Taken, Coroutine[Any, Any, Returned], Returned]: ...
    @overload
    def __call__(
        self, function: Callable[Concatenate[Run, Taken], Returned], /
    ) -> HandlerFunction[Concatenate[Run, Taken], Taken, Returned, Returned]: ...
    @overload
    def __call__(
        self, function: Callable[Taken, Coroutine[Any, Any, Returned]], /
    ) -> HandlerFunction[Taken, Taken, Coroutine[Any, Any, Returned], Returned]: ...
    @overload
    def __call__(self, function: Callable[Taken, Returned], /) -> HandlerFunction[Taken, Taken, Returned, Returned]: ...


class SubmittingApp(Protocol):
    """What a decorated function needs of its app."""

    @property
    def submit(self) -> "Callable[..., Awaitable[Submitted[Any]]]": ...

    @property
    def submit_sync(self) -> "Callable[..., SubmittedSync[Any]]": ...


class Submitter(Generic[Taken]):
    """Submits one function, under the name that its app knows it by."""

    def __init__(
        self, app: SubmittingApp, name: str, function: Callable[..., Any], options: Mapping[str, Any] | None = None
    ) -> None:
        self._app = app
        self._name = name
        self._function = function
        self._options = options or {}

    def submit(self, *args: Any, **kwargs: Any) -> "Awaitable[Submitted[Any]]":
        payload, fields = self._split(args, kwargs)
        return self._app.submit(self._name, payload, **fields)

    def submit_sync(self, *args: Any, **kwargs: Any) -> "SubmittedSync[Any]":
        payload, fields = self._split(args, kwargs)
        return self._app.submit_sync(self._name, payload, **fields)

    def options(self, **options: Any) -> "Submitter[Taken]":
        return Submitter(self._app, self._name, self._function, options)

    def _split(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[dict[str, Any] | None, dict[str, Any]]:
        """The payload from the arguments, and the fields of the job among them."""
        signature = _without_run(self._function)
        taken = signature.parameters
        fields = {name: kwargs.pop(name) for name in INLINE if name in kwargs and name not in taken}
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError as error:
            raise InvalidInput("payload", f"{self._name} {error}: other fields of the job go into .options()") from None
        payload: dict[str, Any] = {}
        for name, value in bound.arguments.items():
            is_rest = taken[name].kind is inspect.Parameter.VAR_KEYWORD
            payload |= value if is_rest else {name: value}
        return payload or None, {**self._options, **fields}


def submittable(app: SubmittingApp, name: str, function: Callable[..., Any]) -> Any:
    """The function, with the methods of its submitter as attributes. What takes no attributes stays as it is."""
    submitter: Submitter[...] = Submitter(app, name, function)
    for method in ("submit", "submit_sync", "options"):
        present = getattr(function, method, None)
        if present is None or isinstance(getattr(present, "__self__", None), Submitter):
            try:
                setattr(function, method, getattr(submitter, method))
            except (AttributeError, TypeError):
                break
    return cast("Any", function)


def _without_run(function: Callable[..., Any]) -> inspect.Signature:
    signature = inspect.signature(function)
    run = run_parameter(signature)
    return signature.replace(parameters=[each for each in signature.parameters.values() if each.name != run])
