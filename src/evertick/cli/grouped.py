"""Options that belong together are said once, as the fields of a named tuple; a command gets them as one value."""

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any, Concatenate, NamedTuple, ParamSpec, TypeVar

_G = TypeVar("_G", bound=NamedTuple)
_P = ParamSpec("_P")


def grouped(group: type[_G]) -> Callable[[Callable[Concatenate[_G, _P], None]], Callable[..., None]]:
    """Give commands the options of a group; they get them as one value, before their own."""
    make: Callable[..., _G] = group
    options = [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=group._field_defaults[name],
            annotation=group.__annotations__[name],
        )
        for name in group._fields
    ]

    def decorate(command: Callable[Concatenate[_G, _P], None]) -> Callable[..., None]:
        own = inspect.signature(command)
        _, *parameters = own.parameters.values()

        @wraps(command)
        def run(**given: Any) -> None:
            together = make(**{name: given.pop(name) for name in group._fields})
            command(together, **given)  # type: ignore[call-arg] # Typer passes what the signature below names

        shown = [*parameters, *options]
        run.__signature__ = own.replace(parameters=shown)  # type: ignore[attr-defined] # where inspect looks first
        run.__annotations__ = {parameter.name: parameter.annotation for parameter in shown}
        return run

    return decorate
