"""Reads what requests bring: bodies within their limits, JSON, query parameters. Whatever does not fit is a Problem."""

import functools
import hashlib
import re
from collections.abc import AsyncIterator, Hashable, Iterator, Mapping
from types import NoneType, UnionType
from typing import Any, NamedTuple, TypeVar, Union, cast, get_args, get_origin
from urllib.parse import parse_qsl

import msgspec

from evertick.api.bodies.body_limits import Reservation, count_values
from evertick.api.instants import beyond_the_calendar
from evertick.api.problems import Kind, Problem
from evertick.domain.errors import Fault
from evertick.domain.job.faults import Faults, echo

MAX_BYTES = 1_048_576
MAX_VALUES = 131_072
"""Of one document. Decoding as many empty lists takes about 10 ms, and a job whose payload fits has fewer."""
MAX_PARAMETERS = 100
JSON = "application/json"
NDJSON = "application/x-ndjson"

_T = TypeVar("_T")
_LONG_BYTES = 65_536
"""In longer documents the lengths of lists are checked before their items, and 120.0 is not taken for 120."""
_raws = msgspec.json.Decoder(list[msgspec.Raw])
_PLACE = re.compile(r" - at `(?:key in )?\$(.*)`$")
_STEP = re.compile(r"\.([^.\[]+)|\[(\d+|\.\.\.)\]")
_UNKNOWN = re.compile(r"Object contains unknown field `(.*)`", re.DOTALL)
_MISSING = re.compile(r"Object missing required field `(.*)`", re.DOTALL)


class IncomingBody:
    """The body of a request with a key, as it arrives. What is read counts in its reservation and in its digest."""

    def __init__(self, headers: Mapping[str, str], stream: AsyncIterator[bytes], reservation: Reservation) -> None:
        self.headers = headers
        self.reservation = reservation
        self.digest = hashlib.sha256()
        self._stream = stream

    @property
    def announced(self) -> int | None:
        """The size that the client announced, if it did."""
        length = self.headers.get("content-length", "")
        return int(length) if length.isdecimal() else None

    async def parts(self, most: int) -> AsyncIterator[bytes]:
        """The body in parts, unless it is too large; then no more of it is read than that takes to know."""
        if self.announced is not None:
            if self.announced > most:
                raise too_large(f"a body has at most {most} bytes")
            self.reservation.check(self.announced)
        size = 0
        async for part in self._stream:
            size += len(part)
            if size > most:
                raise too_large(f"a body has at most {most} bytes")
            self.reservation.add(len(part))
            self.digest.update(part)
            yield part

    async def document(self) -> bytes:
        """A whole body that is one document, of so many values that it can be decoded at once."""
        data = b"".join([part async for part in self.parts(MAX_BYTES)])
        values = count_values(data)
        if values > MAX_VALUES:
            raise Problem(Kind.INVALID, f"the body {TOO_MANY_VALUES}", [Fault("", TOO_MANY_VALUES)])
        self.reservation.add_values(values)
        return data


TOO_MANY_VALUES = f"has more than {MAX_VALUES} values, by its commas and brackets"


def check_media_type(headers: Mapping[str, str], *accepted: str) -> str:
    """The body's media type; without a word about it, the first accepted one."""
    given = headers.get("content-type")
    if given is None:
        return accepted[0]
    media_type, *parameters = given.lower().split(";")
    found = media_type.strip()
    pairs = (parameter.partition("=") for parameter in parameters)
    charsets = {value.strip().strip('"') for name, _, value in pairs if name.strip() == "charset"}
    if found not in accepted or not charsets <= {"utf-8", "utf8"}:
        raise Problem(Kind.UNSUPPORTED, f"send {' or '.join(accepted)}, in UTF-8")
    return found


def decode(data: bytes) -> Any:
    """JSON of any shape."""
    return _decoded(data, Any)


def read_document(data: bytes, kind: type[_T]) -> _T:
    """JSON of one shape; an empty body is an empty object, so that who has nothing to say need not say it."""
    found = _document(data or b"{}", kind)
    if faults := beyond_the_calendar(found):
        raise Problem(Kind.INVALID, f"{faults[0].pointer} {faults[0].reason}", faults)
    return found


def _document(data: bytes, kind: type[_T]) -> _T:
    if len(data) > _LONG_BYTES:
        _check_lengths(data, kind)
        return cast("_T", _decoded(data, kind))
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        # JSON does not tell 120.0 from 120: once more with whole numbers written as such, or the fault is told.
        found: Any = _wholes(_decoded(data, Any))
    try:
        return msgspec.convert(found, kind)
    except msgspec.ValidationError as error:
        fault = fault_of(error)
        raise Problem(Kind.INVALID, f"{fault.pointer or 'the body'} {fault.reason}", [fault]) from None


def _check_lengths(data: bytes, kind: type[Any]) -> None:
    """Refuse lists that are too long before their items are looked at: to match a pattern takes a microsecond each."""
    most = _longest_lists(cast("Hashable", kind))
    members = _decoded(data, dict[str, msgspec.Raw]) if most else {}
    for name, longest in most.items():
        if name in members and _length(members[name]) > longest:
            fault = Fault(f"/{name}", f"has at most {longest} items")
            raise Problem(Kind.INVALID, f"{fault.pointer} {fault.reason}", [fault])


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


def _wholes(value: Any) -> Any:
    match value:
        case float() if value.is_integer():
            return int(value)
        case dict():
            return {name: _wholes(item) for name, item in value.items()}
        case list():
            return [_wholes(item) for item in value]
        case _:
            return value


def _decoded(data: bytes, kind: Any) -> Any:
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.ValidationError as error:
        fault = fault_of(error)
        raise Problem(Kind.INVALID, f"{fault.pointer or 'the body'} {fault.reason}", [fault]) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Problem(Kind.MALFORMED, f"the body is not JSON in UTF-8: {error}") from None
    except RecursionError:
        raise Problem(Kind.MALFORMED, "the body is nested too deeply") from None


def read_query(raw: bytes, kind: type[_T]) -> _T:
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
    wrong = faults.found if read is None else beyond_the_calendar(read)
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


def fault_of(error: msgspec.ValidationError) -> Fault:
    """Where and what, from a message such as "Expected `int`, got `str` - at `$.outcomes[0].token`"."""
    text = str(error)
    place = _PLACE.search(text)
    pointer = "" if place is None else "".join(f"/{name or index}" for name, index in _STEP.findall(place[1]))
    reason = _PLACE.sub("", text)
    if unknown := _UNKNOWN.fullmatch(reason):
        return Fault(f"{pointer}/{echo(unknown[1])}", "is not a known field")
    if missing := _MISSING.fullmatch(reason):
        return Fault(f"{pointer}/{missing[1]}", "is required")
    return Fault(pointer, f"is wrong: {reason[:1].lower()}{reason[1:]}")


def too_large(detail: str) -> Problem:
    # The rest of the body is not read, so the connection is of no further use.
    return Problem(Kind.TOO_LARGE, detail, headers={"Connection": "close"})
