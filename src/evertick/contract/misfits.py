"""What does not fit its shape, in the words of the API. msgspec says it in types of Python and regular expressions."""

import ast
import functools
import re
from collections.abc import Hashable, Iterable
from typing import Any, cast

import msgspec
from msgspec import inspect

from evertick.contract import patterns
from evertick.contract.reading import NO_INSTANT, NO_ZONE
from evertick.domain.errors import Fault
from evertick.domain.job.faults import Faults, below, echo

_PLACE = re.compile(r"(?P<reason>.*) - at `(?P<key>key` in `)?\$(?P<path>[^`]*)`", re.DOTALL)
"""The last one in the message: before it may be what the caller sent."""
_STEP = re.compile(r"\.([^.\[]+)|\[(\d+)\]")
_SOMEWHERE = "[...]"
"""In a place: a member without its name. The pointer ends before it."""
_UNKNOWN = re.compile(r"Object contains unknown field `(.*)`", re.DOTALL)
_MISSING = re.compile(r"Object missing required field `(.*)`", re.DOTALL)
_WRONG_TYPE = re.compile(r"Expected `([a-z |]+)`(?:, got `([A-Za-z]+)`)?")
_OUT_OF_RANGE = re.compile(r"Expected `(?:int|float)` (>=|<=) (\S+)")
_WRONG_LENGTH = re.compile(r"Expected `([a-z]+)` of length (>=|<=) (\d+)")
_NO_MATCH = re.compile(r"Expected `str` matching regex (.+)", re.DOTALL)
_ONE_OF = re.compile(r"\^\((\w+(?:\|\w+)+)\)\$")

_WANTED = {
    "str": "a string",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "array": "an array",
    "object": "an object",
    "datetime": "a string",
}
_GOT = _WANTED | {
    "int": "a number",
    "bool": "a boolean",
    "NoneType": "null",  # as Python names what a tag is instead of a string
    "list": "an array",
    "dict": "an object",
}
_PARTS = {"str": "character", "array": "item", "object": "member"}
NO_CURSOR = "is none that an earlier page gave"
_FORMS = {
    repr(pattern): words
    for pattern, words in {
        patterns.JOB_ID: "must be the id of a job, which begins with job_",
        patterns.RUN_ID: "must be the id of a run, which begins with run_",
        patterns.REPLAY_ID: "must be the id of a replay, which begins with rpl_",
        patterns.ALERT_ID: "must be the id of an alert, which begins with alr_",
        patterns.SMEAR_ID: "must be the id of a smear, which begins with smr_",
        patterns.KEY_ID: "must be the id of an API key, which begins with key_",
        patterns.TENANT_ID: "must be the id of a tenant, which begins with ten_",
        patterns.RULE_ID: "must be the id of a rule, 16 hexadecimal digits",
        patterns.FENCING: "must be the token of an attempt, such as 412.1781532000000001",
        patterns.WORKER_ID: "must be 1 to 128 characters of A-Z, a-z, 0-9, '.', '_', ':', '@' and '-'",
        patterns.QUEUE: "must be 1 to 63 characters of a-z, 0-9, '.', '_' and '-', the first a letter or digit",
        patterns.CONNECTION: "must be 1 to 63 characters of a-z, 0-9, '.', '_' and '-', the first a letter",
        patterns.HOST: "must be a host, such as api.example.com or 10.0.0.7:8080",
        patterns.BROKER_HOST: "must be a name or an address, such as broker.example.com",
        patterns.BROKER_SERVER: "must be a name or an address, such as broker.example.com:9092",
        patterns.ENDPOINT: "must be an http or https URL without a path, such as https://sqs.example.com",
        patterns.LABEL: "must be a name and a value, such as team:growth",
        patterns.NAME: "must not be blank, begin or end with white space, or contain control characters",
        patterns.STORABLE: "contains a NUL character (\\u0000), which PostgreSQL cannot store",
        patterns.ENTRY: "must be a position that an answer gave",
        patterns.HISTORY: NO_CURSOR,
        patterns.RUNS: NO_CURSOR,
        patterns.LETTER: NO_CURSOR,
    }.items()
}


def fault_of(error: msgspec.ValidationError, kind: Any = Any) -> Fault:
    """Where and what, from a message such as "Expected `int`, got `str` - at `$.outcomes[0].token`".

    `kind` is the type that was wanted.
    """
    text = str(error)
    place = _PLACE.fullmatch(text)
    known = "" if place is None else place["path"].partition(_SOMEWHERE)[0]
    steps = [name or index for name, index in _STEP.findall(known)]
    pointer = "".join(f"/{step}" for step in steps)
    reason = text if place is None else place["reason"]
    is_exact = place is None or (place["path"] == known and not place["key"])
    shapes = _shapes_at(kind, steps) if is_exact else []
    if unknown := _UNKNOWN.fullmatch(reason):
        return _unknown_field(pointer, unknown[1], shapes)
    if missing := _MISSING.fullmatch(reason):
        return Fault(f"{pointer}/{missing[1]}", "is required")
    words = _in_words(reason, shapes)
    return Fault(pointer, f"has a name that is wrong: it {words}" if place is not None and place["key"] else words)


def _shapes_at(kind: Any, steps: Iterable[str]) -> list[inspect.Type]:
    """What a value at these steps into the type may be."""
    found = _choices(_shape_of(cast("Hashable", kind)))
    for step in steps:
        found = [choice for shape in found for choice in _below(shape, step)]
    return found


@functools.cache
def _shape_of(kind: Any) -> inspect.Type:
    return inspect.type_info(kind)


def _choices(shape: inspect.Type) -> list[inspect.Type]:
    match shape:
        case inspect.Metadata():
            return _choices(shape.type)
        case inspect.UnionType():
            return [choice for each in shape.types for choice in _choices(each)]
        case _:
            return [shape]


def _below(shape: inspect.Type, step: str) -> list[inspect.Type]:
    match shape:
        case inspect.StructType() if step == shape.tag_field:
            return [inspect.LiteralType((cast("str", shape.tag),))]
        case inspect.StructType():
            return [choice for field in shape.fields if field.encode_name == step for choice in _choices(field.type)]
        case inspect.ListType() | inspect.VarTupleType():
            return _choices(shape.item_type)
        case _:
            return []


def _unknown_field(parent: str, name: str, shapes: list[inspect.Type]) -> Fault:
    structs = [shape for shape in shapes if isinstance(shape, inspect.StructType)]
    if len(structs) != 1:
        return Fault(below(parent, name), "is not a known field")
    faults = Faults()
    faults.add_unknown(parent, name, [field.encode_name for field in structs[0].fields])
    return faults.found[0]


def _in_words(reason: str, shapes: list[inspect.Type]) -> str:  # noqa: PLR0911 - by message
    if reason.startswith(("Invalid enum value", "Invalid value")) and (allowed := _allowed(shapes)):
        return f"must be one of {', '.join(allowed)}"
    if reason == "Invalid RFC3339 encoded datetime":
        return NO_INSTANT
    if reason == "Expected `datetime` with a timezone component":
        return NO_ZONE
    if wrong := _WRONG_TYPE.fullmatch(reason):
        return _wrong_type(wrong[1].split(" | "), wrong[2])
    if wrong := _OUT_OF_RANGE.fullmatch(reason):
        return _out_of_range(wrong[1], wrong[2], shapes)
    if wrong := _WRONG_LENGTH.fullmatch(reason):
        return _wrong_length(_PARTS.get(wrong[1], "item"), wrong[2], int(wrong[3]))
    if wrong := _NO_MATCH.fullmatch(reason):
        return _no_match(wrong[1])
    return f"is wrong: {echo(reason[:1].lower() + reason[1:])}"


def _allowed(shapes: list[inspect.Type]) -> list[str]:
    found: list[Any] = []
    for shape in shapes:
        match shape:
            case inspect.EnumType():
                found += [word.value for word in shape.cls]
            case inspect.LiteralType():
                found += shape.values
            case _:
                pass
    return [str(word) for word in found]


def _wrong_type(wanted: list[str], got: str | None) -> str:
    words = list(dict.fromkeys(_WANTED.get(each, each) for each in wanted if each != "null"))
    if "a number" in words and "a whole number" in words:
        words.remove("a whole number")
    must = f"must be {' or '.join(words)}"
    if got is None or (got == "float" and words == ["a whole number"]):
        return must
    return f"{must}, not {_GOT.get(got, got)}"


def _out_of_range(side: str, limit: str, shapes: list[inspect.Type]) -> str:
    numbers = [shape for shape in shapes if isinstance(shape, inspect.IntType | inspect.FloatType)]
    ranges = {(shape.ge, shape.le) for shape in numbers}
    if len(ranges) == 1:
        least, most = ranges.pop()
        if least is not None and most is not None:
            return f"must be from {_plain(least)} to {_plain(most)}"
    return f"must be at {'least' if side == '>=' else 'most'} {_plain(float(limit))}"


def _plain(number: float) -> str:
    return str(int(number) if float(number).is_integer() else number)


def _wrong_length(part: str, side: str, limit: int) -> str:
    if side == ">=" and limit == 1:
        return "must not be empty"
    return f"has at {'least' if side == '>=' else 'most'} {limit} {part}{'' if limit == 1 else 's'}"


def _no_match(pattern: str) -> str:
    """`pattern` is as Python writes it, in quotes."""
    if words := _FORMS.get(pattern):
        return words
    if one_of := _ONE_OF.fullmatch(pattern[1:-1]):
        return f"must be one of {', '.join(one_of[1].split('|'))}"
    return f"must match the regular expression {ast.literal_eval(pattern)}"
