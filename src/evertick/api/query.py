"""Parses query parameters into one type. What does not fit raises a Problem."""

import functools
from collections.abc import Hashable
from types import NoneType, UnionType
from typing import Any, NamedTuple, TypeVar, Union, cast, get_args, get_origin
from urllib.parse import parse_qsl

import msgspec

from evertick.api.bodies.decoding import fault_of
from evertick.api.problems import Kind, Problem
from evertick.contract.reading import faults_in
from evertick.domain.job.faults import Faults

MAX_PARAMETERS = 100

_S = TypeVar("_S", bound=msgspec.Struct)


def parse_query(raw: bytes, kind: type[_S]) -> _S:
    """Query parameters of one shape. Lists collect what is given several times; all else may be given once."""
    try:
        pairs = parse_qsl(raw.decode("ascii"), keep_blank_values=True, max_num_fields=MAX_PARAMETERS, errors="strict")
    except ValueError as error:
        raise Problem(Kind.MALFORMED, f"the query cannot be read: {error}") from None
    fields = _fields(cast("Hashable", kind))
    faults = Faults()
    texts: dict[str, list[str]] = {}
    for name, value in pairs:
        if name in fields:
            texts.setdefault(name, []).append(value)
        else:
            faults.add_unknown("", name, fields)
    found = {fields[name].name: _read_parameter(name, values, fields[name], faults) for name, values in texts.items()}
    read = kind(**found) if not faults else None
    wrong = faults.found if read is None else faults_in(read)
    if read is not None and not wrong:
        return read
    detail = "; ".join(f"query parameter {pointer[1:]} {reason}" for pointer, reason in wrong)
    raise Problem(Kind.INVALID, detail, wrong)


class _Field(NamedTuple):
    name: str
    kind: Any
    is_list: bool
    is_number: bool


@functools.cache
def _fields(kind: Any) -> dict[str, _Field]:
    """The parameters by the names that callers know, without None: a parameter is there or not, null it cannot be."""
    found = {}
    for field in msgspec.structs.fields(kind):
        choices = [choice for choice in get_args(field.type) if choice is not NoneType]
        is_optional = get_origin(field.type) in {Union, UnionType} and len(choices) == 1
        wanted = choices[0] if is_optional else field.type
        bare = getattr(wanted, "__origin__", wanted)
        found[field.encode_name] = _Field(field.name, wanted, get_origin(bare) is list, bare in {int, float})
    return found


def _read_parameter(name: str, texts: list[str], field: _Field, faults: Faults) -> Any:
    if not field.is_list and len(texts) > 1:
        faults.add(f"/{name}", "is given twice")
        return None
    try:
        # Only numbers may be read from texts: other types would take a number for an instant, or `null` for nothing.
        return msgspec.convert(texts if field.is_list else texts[0], field.kind, strict=not field.is_number)
    except msgspec.ValidationError as error:
        faults.add(f"/{name}", fault_of(error).reason)
        return None
