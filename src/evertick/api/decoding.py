"""Decodes JSON bodies and query parameters. What does not fit raises an HttpProblem that says where and why."""

import functools
from collections.abc import Hashable, Iterable, Iterator
from types import NoneType, UnionType
from typing import Any, NamedTuple, TypeVar, Union, cast, get_args, get_origin
from urllib.parse import parse_qsl

import msgspec

from evertick.api.problems import HttpProblem, Kind
from evertick.contract.misfits import NO_CURSOR, fault_of
from evertick.contract.reading import faults_in, whole_numbers
from evertick.domain.errors import Fault
from evertick.domain.job.faults import Faults

MAX_PARAMETERS = 100

_T = TypeVar("_T")
_S = TypeVar("_S", bound=msgspec.Struct)
_LONG_BYTES = 65_536
"""In longer documents the lengths of lists are checked before their items, and 120.0 is not taken for 120."""
_raws = msgspec.json.Decoder(list[msgspec.Raw])
_FLAGS = {"true": True, "false": False}


def decode(data: bytes) -> Any:
    """JSON of any shape."""
    return _decoded(data, Any)


def decode_document(data: bytes, kind: type[_S]) -> _S:
    """JSON of one type. An empty body counts as an empty object."""
    found = _document(data or b"{}", kind)
    if faults := faults_in(found):
        raise HttpProblem(Kind.INVALID, f"{faults[0].pointer} {faults[0].reason}", faults)
    return found


def _document(data: bytes, kind: type[_T]) -> _T:
    if len(data) > _LONG_BYTES:
        _check_lengths(data, kind)
        return cast("_T", _decoded(data, kind))
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        # JSON does not distinguish 120.0 from 120: once more with whole floats as integers, or raise the fault.
        found: Any = whole_numbers(_decoded(data, Any))
    try:
        return msgspec.convert(found, kind)
    except msgspec.ValidationError as error:
        raise _invalid(error, kind) from None


def _check_lengths(data: bytes, kind: type[Any]) -> None:
    """Refuse lists that are too long before their items are looked at: to match a pattern takes a microsecond each."""
    most = _longest_lists(cast("Hashable", kind))
    members = _decoded(data, dict[str, msgspec.Raw]) if most else {}
    for name, longest in most.items():
        if name in members and _length(members[name]) > longest:
            fault = Fault(f"/{name}", f"has at most {longest} items")
            raise HttpProblem(Kind.INVALID, f"{fault.pointer} {fault.reason}", [fault])


def _length(text: msgspec.Raw) -> int:
    try:
        return len(_raws.decode(text))
    except msgspec.ValidationError:
        return 0  # not a list: decoding says so


@functools.cache
def _longest_lists(kind: Any) -> dict[str, int]:
    """How many items the lists of a shape may have, by the names that callers know."""
    shape = msgspec.inspect.type_info(kind)
    assert isinstance(shape, msgspec.inspect.StructType)
    return {
        field.encode_name: choice.max_length
        for field in shape.fields
        for choice in _choices(field.type)
        if isinstance(choice, msgspec.inspect.ListType) and choice.max_length is not None
    }


def _choices(kind: msgspec.inspect.Type) -> Iterator[msgspec.inspect.Type]:
    match kind:
        case msgspec.inspect.Metadata():
            yield from _choices(kind.type)
        case msgspec.inspect.UnionType():
            for choice in kind.types:
                yield from _choices(choice)
        case _:
            yield kind


def _decoded(data: bytes, kind: Any) -> Any:
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.ValidationError as error:
        raise _invalid(error, kind) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        reason = f"is not JSON in UTF-8: {error}" if data else "is empty"
        raise HttpProblem(Kind.MALFORMED, f"the body {reason}") from None
    except RecursionError:
        raise HttpProblem(Kind.MALFORMED, "the body is nested too deeply") from None


def _invalid(error: msgspec.ValidationError, kind: Any) -> HttpProblem:
    fault = fault_of(error, kind)
    return HttpProblem(Kind.INVALID, f"{fault.pointer or 'the body'} {fault.reason}", [fault])


def parse_query(raw: bytes, kind: type[_S], *, ignores_blanks: bool = False) -> _S:
    """Query parameters of one shape. Lists collect what is given several times; all else may be given once."""
    try:
        pairs = parse_qsl(
            raw.decode("ascii"), keep_blank_values=not ignores_blanks, max_num_fields=MAX_PARAMETERS, errors="strict"
        )
    except ValueError as error:
        raise HttpProblem(Kind.MALFORMED, f"the query cannot be read: {error}") from None
    return read_pairs(pairs, kind)


def read_pairs(pairs: Iterable[tuple[str, str]], kind: type[_S]) -> _S:
    """Names with texts, as a query or a form has them, as a struct."""
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
    detail = "; ".join(f"parameter {pointer[1:]} {reason}" for pointer, reason in wrong)
    raise HttpProblem(Kind.INVALID, detail, wrong)


class _Field(NamedTuple):
    name: str
    kind: Any
    is_list: bool
    is_number: bool
    is_flag: bool


@functools.cache
def _fields(kind: Any) -> dict[str, _Field]:
    """The parameters by the names that callers know, without None: a parameter is there or not, null it cannot be."""
    found = {}
    for field in msgspec.structs.fields(kind):
        choices = [choice for choice in get_args(field.type) if choice is not NoneType]
        is_optional = get_origin(field.type) in {Union, UnionType} and len(choices) == 1
        wanted = choices[0] if is_optional else field.type
        bare = getattr(wanted, "__origin__", wanted)
        found[field.encode_name] = _Field(
            field.name, wanted, get_origin(bare) is list, bare in {int, float}, bare is bool
        )
    return found


def _read_parameter(name: str, texts: list[str], field: _Field, faults: Faults) -> Any:
    if not field.is_list and len(texts) > 1:
        faults.add(f"/{name}", "is given twice")
        return None
    if field.is_flag:
        if texts[0] not in _FLAGS:
            faults.add(f"/{name}", "must be true or false")
        return _FLAGS.get(texts[0])
    try:
        # Only numbers may be read from texts: other types would take a number for an instant, or `null` for nothing.
        return msgspec.convert(texts if field.is_list else texts[0], field.kind, strict=not field.is_number)
    except msgspec.ValidationError as error:
        # Every parameter comes as a text: that a number is none is enough.
        reason = fault_of(error, field.kind).reason.removesuffix(", not a string")
        faults.add(f"/{name}", NO_CURSOR if name == "cursor" else reason)
        return None
