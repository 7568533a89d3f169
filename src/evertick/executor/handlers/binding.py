"""How a payload reaches a handler's parameters: by name, checked and converted by their annotations."""

import inspect
import typing
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from msgspec.inspect import CustomType, UnionType, type_info as inspect_type

from evertick.domain.errors import InvalidInput
from evertick.executor.handlers.run import DoNotRetry, Run

_RUN_NAMES = frozenset({"run", "_run", "_"})
_EITHER = inspect.Parameter.POSITIONAL_OR_KEYWORD


class Misfit(DoNotRetry):
    """The payload does not fit the handler's parameters; no retry will change that."""


class Binding:
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
