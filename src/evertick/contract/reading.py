"""Reads structs from decoded JSON, by their annotations alone.

Mostly msgspec converts the whole in one step and `run_checks` finds nothing. When the conversion fails,
`read_members` converts member by member: it names every fault, takes null for a default, and 120.0 for 120.
"""

import functools
from collections.abc import Iterable, Mapping
from datetime import datetime
from math import isfinite
from typing import Annotated, Any, NamedTuple, TypeVar

import msgspec
from msgspec import UNSET, Meta, Struct, inspect

from evertick.domain.errors import Fault
from evertick.domain.job.checks import Check
from evertick.domain.job.faults import Faults, below, kind_of

_S = TypeVar("_S", bound=Struct)
_Instant = Annotated[datetime, Meta(tz=True)]
NO_INSTANT = "must be an instant that exists, as RFC 3339 writes it, such as 2026-06-09T13:00:00Z"
NO_ZONE = "needs a time zone: Z, or an offset such as +02:00"


class _MemberCheck(NamedTuple):
    name: str
    pointer: str
    check: Check
    default: Any


def run_checks(found: Struct, given: Iterable[str], faults: Faults) -> None:
    """Run the checks of those members of a converted struct that were given, and of the structs in it."""
    checks = _checks_of(type(found), "")
    for member in given:
        if (found_check := checks.get(member)) is not None:
            name, pointer, check, _ = found_check
            value = getattr(found, name)
            if value is not None:
                check(value, pointer, faults)


@functools.cache
def _checks_of(kind: type[Struct], at: str) -> dict[str, _MemberCheck]:
    """The checks of a struct, which stands at a pointer, by the names that callers know."""
    checks = {}
    for field in _shape_of(kind).fields:
        pointer = f"{at}/{field.encode_name}"
        for choice in _choices(field.type):
            if isinstance(choice, inspect.StructType):
                checks[field.encode_name] = _MemberCheck(field.name, pointer, _check_struct, field.default)
            elif isinstance(choice, inspect.Metadata) and choice.extra:
                checks[field.encode_name] = _MemberCheck(field.name, pointer, choice.extra["check"], field.default)
    return checks


def faults_in(found: Struct) -> list[Fault]:
    """What the checks of a decoded struct find."""
    faults = Faults()
    _check_struct(found, "", faults)
    return faults.found


def _check_struct(found: Struct, at: str, faults: Faults) -> None:
    for name, pointer, check, default in _checks_of(type(found), at).values():
        value = getattr(found, name)
        if value is not default and value is not None and value is not UNSET:
            check(value, pointer, faults)


@functools.cache
def _shape_of(kind: type[Struct]) -> inspect.StructType:
    shape = inspect.type_info(kind)
    assert isinstance(shape, inspect.StructType)
    return shape


def _choices(kind: inspect.Type) -> list[inspect.Type]:
    """What a value of the type may be, but for null."""
    found = kind.types if isinstance(kind, inspect.UnionType) else (kind,)
    return [choice for choice in found if not isinstance(choice, inspect.NoneType)]


def read_members(value: object, kind: type[Struct], faults: Faults) -> dict[str, Any]:
    """Convert and check the members that are given; one with a fault is None."""
    return _read_struct(_shape_of(kind), value, "", faults)


def read_settings(values: object, kind: type[_S]) -> _S:
    """A message from members that were not decoded. InvalidFields lists every fault."""
    faults = Faults()
    found = read_members(values, kind, faults)
    faults.raise_any()
    return kind(**found)


def _read_struct(shape: inspect.StructType, value: object, at: str, faults: Faults) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        faults.add(at, f"must be an object, not {kind_of(value)}")
        return {}
    members = {field.encode_name: field for field in shape.fields}
    found: dict[str, Any] = {}
    for name, item in value.items():
        field = members.get(name)
        if field is not None:
            if item is not None:
                found[field.name] = _read(field.type, item, f"{at}/{name}", faults)
        elif faults.full:
            break
        elif name != shape.tag_field:
            faults.add_unknown(at, name, ([shape.tag_field] if shape.tag_field else []) + list(members))
    for field in shape.fields:
        if field.required and field.name not in found:
            faults.add(f"{at}/{field.encode_name}", "is required")
    return found


def _read(kind: inspect.Type, value: object, at: str, faults: Faults) -> Any:  # noqa: C901, PLR0911 - by type
    """The value as its annotation has it. None if something is wrong with it."""
    match kind:
        case inspect.Metadata():
            before = len(faults.found)
            found = _read(kind.type, value, at, faults)
            check = (kind.extra or {}).get("check")
            if check is not None and len(faults.found) == before:
                check(found, at, faults)
            return found
        case inspect.UnionType():
            return _read_union(_choices(kind), value, at, faults)
        case inspect.StructType():
            before = len(faults.found)
            members = _read_struct(kind, value, at, faults)
            return kind.cls(**members) if len(faults.found) == before else None
        case inspect.EnumType():
            return _read_word({word.value: word for word in kind.cls}, value, at, faults)
        case inspect.IntType():
            return _read_number(kind, value, at, faults, is_whole=True)
        case inspect.FloatType():
            return _read_number(kind, value, at, faults, is_whole=False)
        case inspect.StrType():
            return _read_text(kind.max_length, value, at, faults)
        case inspect.DateTimeType():
            return read_instant(value, at, faults)
        case inspect.DictType() if not isinstance(value, Mapping):
            faults.add(at, f"must be an object, not {kind_of(value)}")
            return None
        case inspect.BoolType() if not isinstance(value, bool):
            faults.add(at, f"must be true or false, not {kind_of(value)}")
            return None
        case _:
            return value


def _read_union(choices: list[inspect.Type], value: object, at: str, faults: Faults) -> Any:
    structs = [choice for choice in choices if isinstance(choice, inspect.StructType)]
    if not structs or not isinstance(value, Mapping):
        # Of a whole number or a fraction, the latter allows both.
        return _read(structs[0] if structs else choices[-1], value, at, faults)
    tag_field, tags = str(structs[0].tag_field), [str(struct.tag) for struct in structs]
    tag = value.get(tag_field)
    for struct in structs:
        if struct.tag == tag:
            return _read(struct, value, at, faults)
    faults.add(below(at, tag_field), f"{'is required:' if tag is None else 'must be'} one of {', '.join(tags)}")
    return None


def _read_word(words: Mapping[Any, Any], value: object, at: str, faults: Faults) -> Any:
    if isinstance(value, str) and value in words:
        return words[value]
    faults.add(at, f"must be one of {', '.join(words)}")
    return None


def _read_number(
    kind: inspect.IntType | inspect.FloatType, value: object, at: str, faults: Faults, *, is_whole: bool
) -> float | None:
    """The number; 120.0 is the whole number 120, as JSON does not tell them apart."""
    if type(value) is not int and type(value) is not float:
        faults.add(at, f"must be a number, not {kind_of(value)}")
    elif not isfinite(value) if type(value) is float else False:
        faults.add(at, "must be finite")
    elif is_whole and value != int(value):
        faults.add(at, "must be a whole number")
    elif (kind.ge is not None and value < kind.ge) or (kind.le is not None and value > kind.le):
        faults.add(at, f"must be from {kind.ge} to {kind.le}")
    else:
        return int(value) if type(value) is float and value.is_integer() else value
    return None


def _read_text(max_length: int | None, value: object, at: str, faults: Faults) -> str | None:
    if not isinstance(value, str):
        faults.add(at, f"must be a string, not {kind_of(value)}")
    elif max_length is not None and len(value) > max_length:
        faults.add(at, f"has at most {max_length} characters, not {len(value)}")
    else:
        return value
    return None


def read_instant(value: object, at: str, faults: Faults) -> datetime | None:
    if not isinstance(value, str | datetime):
        faults.add(at, f"must be a string, not {kind_of(value)}")
        return None
    try:
        return msgspec.convert(value, _Instant)
    except msgspec.ValidationError as error:
        faults.add(at, NO_ZONE if "timezone" in str(error) else NO_INSTANT)
    except UnicodeEncodeError:
        faults.add(at, NO_INSTANT)
    return None


def whole_numbers(value: Any) -> Any:
    """Decoded JSON with 120 for 120.0: JSON does not tell them apart."""
    match value:
        case float() if value.is_integer():
            return int(value)
        case dict():
            return {name: whole_numbers(item) for name, item in value.items()}
        case list():
            return [whole_numbers(item) for item in value]
        case _:
            return value
