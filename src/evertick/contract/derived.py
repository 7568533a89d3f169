"""Structs that are derived from others, so that no field is written twice."""

import functools
from collections.abc import Mapping
from enum import Enum
from types import UnionType
from typing import Annotated, Any, TypeVar, Union, cast, get_args, get_origin

import msgspec
from msgspec import UNSET, Struct, UnsetType

from evertick.contract.annotations import Schema

_S = TypeVar("_S", bound=Struct)
_T = TypeVar("_T")


def lenient(kind: type[_T]) -> type[_T]:
    """The struct, or list of structs, that reads what another release wrote: a newer server, or a store.

    It is a subclass with the same fields, which takes any word, any bounds, any kind of target, and fields that it does
    not know.
    """
    return cast("type[_T]", _loosened(kind))


@functools.cache
def _lenient_struct(kind: type[_S]) -> type[_S]:
    fields: list[Any] = []
    for field in msgspec.structs.fields(kind):
        default: Any = msgspec.field(name=field.encode_name)
        if field.default is not msgspec.NODEFAULT:
            default = msgspec.field(default=field.default, name=field.encode_name)
        elif field.default_factory is not msgspec.NODEFAULT:
            default = msgspec.field(default_factory=field.default_factory, name=field.encode_name)
        fields.append((field.name, _loosened(field.type), default))
    return cast(
        "type[_S]",
        msgspec.defstruct(
            kind.__name__, fields, bases=(kind,), kw_only=True, forbid_unknown_fields=False, module=kind.__module__
        ),
    )


def _loosened(kind: Any) -> Any:
    origin, args = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return _loosened(args[0])
    if origin in {Union, UnionType}:
        if sum(_is_struct(arg) for arg in args) > 1:
            return dict[str, Any]  # told apart by a tag, of which there may be more
        return Union[tuple(map(_loosened, args))]  # noqa: UP007 - made at run time
    if origin is not None and args:
        return origin[tuple(arg if arg is ... else _loosened(arg) for arg in args)]
    if _is_struct(kind):
        return _lenient_struct(kind)
    return str if isinstance(kind, type) and issubclass(kind, Enum) else kind


def _is_struct(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Struct)


def request_of(  # noqa: PLR0913 - two for every request, the others by name
    name: str,
    kind: type[Struct],
    text: str,
    *,
    first: Mapping[str, tuple[Any, Any]] | None = None,
    is_partial: bool = False,
    json_schema: Schema | None = None,
) -> type[Struct]:
    """The struct of a request whose optional members may be null, which means their default.

    `first` are more members. In a partial one no member is required.
    """
    fields: list[Any] = [(member, *declared) for member, declared in (first or {}).items()]
    for field in msgspec.structs.fields(kind):
        if field.default is not msgspec.NODEFAULT:
            fields.append((field.name, field.type | None, field.default))
        elif field.default_factory is not msgspec.NODEFAULT:
            fields.append((field.name, field.type | None, msgspec.field(default_factory=field.default_factory)))
        elif is_partial:
            fields.append((field.name, field.type | UnsetType, UNSET))
        else:
            fields.append((field.name, field.type))
    config = kind.__struct_config__
    return msgspec.defstruct(
        name,
        fields,
        kw_only=True,
        forbid_unknown_fields=True,
        tag=config.tag,
        tag_field=config.tag_field,
        namespace={"__doc__": text, "json_schema": json_schema or {}},
    )
