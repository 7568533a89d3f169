"""A job's fields as those of a form, made from the contract: a field that the contract gets is in the form too.

Only groups, hints and a few labels are chosen here. A text of the form is read by the type of its field; what the
contract then refuses is shown at the field that its pointer names.
"""

import functools
import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from enum import Enum, auto
from typing import Any, NamedTuple

import msgspec
from msgspec import inspect

from evertick.contract.annotations import ACCEPTED
from evertick.contract.job import JobDocument
from evertick.contract.target import TARGETS
from evertick.domain.errors import Fault

TARGET_TYPE = "target.type"
DEFAULT_TYPE = "http"
_GROUPS = {
    "Retries and timeout": (
        "max_retries",
        "retry_backoff",
        "retry_delay_seconds",
        "retry_max_delay_seconds",
        "timeout_seconds",
        "idempotency_key_template",
    ),
    "Missed and overlapping runs": (
        "missed_window",
        "misfire_grace_seconds",
        "max_missed",
        "concurrent_policy",
        "max_concurrent",
        "max_running",
        "concurrency_key",
        "ordering_key",
    ),
    "Window, jitter and daylight saving": ("start_at", "end_at", "jitter_seconds", "dst_gap", "dst_overlap"),
    "Alerts": ("must_succeed_within", "alert_after_failures", "alert_if_late_seconds", "alert_if_running_seconds"),
}
_LAST_GROUP = "Labels, priority and the rest"
_BASIC = ("schedule", "timezone", "target", "payload")
_HINTS = {
    "timezone": "An IANA name, such as Europe/Paris.",
    "payload": "Any JSON. It is the body of a webhook, and what a handler gets.",
    "labels": "One on each line, such as `team: billing`.",
    "headers": "One on each line, such as `X-Team: growth`.",
    "idempotency_key_template": "Equal for all attempts of a run.",
    "jitter_seconds": "A fixed delay of this job within so many seconds, so that many jobs do not fire at once.",
    "start_at": "It never fires before. With its zone, such as 2026-06-09T13:00:00Z.",
    "end_at": "It never fires after. With its zone, such as 2026-06-09T13:00:00Z.",
    "url": "Where the webhook goes.",
    "queue": "Which workers run it.",
    "handler": "The name of the workers' function.",
    "schedule": "Cron, `every 5m`, `@daily`, `RRULE:…`, an instant as 2026-06-09T13:00:00Z, `in 90s`, or `manual`.",
    "retry_backoff": "How the delay grows from retry to retry; always with some jitter.",
    "missed_window": "What happens to ticks that were missed by more than the grace, as in an outage.",
    "concurrent_policy": "What happens to a tick while an earlier run is unfinished.",
    "dst_gap": "What happens to a time that does not exist on the day when the clocks go forward.",
    "dst_overlap": "Which of the two runs when a time happens twice.",
    "priority": "Which runs workers get first.",
    "retain_seconds": "A finished one-off job is removed after this; its history stays.",
    "max_missed": "Of missed ticks, RUN_ALL runs the newest so many.",
    "max_retries": "After the first attempt.",
}
_LABELS = {
    "url": "URL",
    "queue_url": "Queue URL",
    "group_id": "Group ID",
    "timezone": "Time zone",
    "dst_gap": "DST gap",
    "dst_overlap": "DST overlap",
}


class Kind(Enum):
    """How a value is typed, and read from its text."""

    TEXT = auto()
    NUMBER = auto()
    WORD = auto()  # one of several
    FLAG = auto()
    JSON = auto()
    PAIRS = auto()  # `name: value` on each line
    NUMBER_OR_TEXT = auto()
    INSTANT = auto()


_KINDS = {
    inspect.IntType: Kind.NUMBER,
    inspect.FloatType: Kind.NUMBER,
    inspect.DateTimeType: Kind.INSTANT,
    inspect.DictType: Kind.PAIRS,
}


class FormField(NamedTuple):
    """A field of the form. `path` is where the contract has it; `default` is the text of its default."""

    name: str
    path: tuple[str, ...]
    kind: Kind
    label: str
    hint: str
    is_required: bool
    default: str
    words: tuple[str, ...] = ()

    @property
    def control(self) -> str:
        """What the page shows it as."""
        if self.kind in {Kind.WORD, Kind.FLAG}:
            return "select"
        return "textarea" if self.kind in {Kind.JSON, Kind.PAIRS} else "text"


NAME = FormField("name", ("name",), Kind.TEXT, "Name", "Unique among your jobs.", is_required=False, default="")


@functools.cache
def basic_fields() -> dict[str, FormField]:
    """Those that nearly every job sets, apart from its target and its name."""
    return {name: field for name, field in _fields().items() if name in _BASIC}


@functools.cache
def groups() -> tuple[tuple[str, tuple[FormField, ...]], ...]:
    """All other fields, by what they are about."""
    known = {name for names in _GROUPS.values() for name in names} | set(_BASIC)
    rest = tuple(field for name, field in _fields().items() if name not in known)
    found = [(title, tuple(_fields()[name] for name in names)) for title, names in _GROUPS.items()]
    return (*found, (_LAST_GROUP, rest))


@functools.cache
def targets() -> dict[str, tuple[FormField, ...]]:
    """The fields of each type of target."""
    return {
        str(kind.__struct_config__.tag): tuple(_of_struct(kind, ("target",), f"target.{kind.__struct_config__.tag}."))
        for kind in TARGETS
    }


@functools.cache
def _fields() -> dict[str, FormField]:
    return {field.name: field for field in _of_struct(JobDocument, (), "") if field.name != "target"}


def _all(target_type: str) -> Iterator[FormField]:
    yield from _fields().values()
    yield from targets().get(target_type, ())


def _of_struct(kind: type[msgspec.Struct], path: tuple[str, ...], prefix: str) -> Iterator[FormField]:
    shape = inspect.type_info(kind)
    assert isinstance(shape, inspect.StructType)
    for field in shape.fields:
        yield _field(field, (*path, field.encode_name), prefix + field.encode_name)


def _field(field: inspect.Field, path: tuple[str, ...], name: str) -> FormField:
    bare, schema = _bare(field.type)
    kind, words = _kind_of(bare, schema)
    default = None if field.default is msgspec.NODEFAULT else field.default
    label = _LABELS.get(path[-1]) or path[-1].replace("_", " ").capitalize()
    hint = _HINTS.get(path[-1]) or str(schema.get("description", ""))
    return FormField(name, path, kind, label, _with_bounds(hint, bare), field.required, text_of(kind, default), words)


def _bare(kind: inspect.Type) -> tuple[inspect.Type, dict[str, Any]]:
    """The type without what is around it, and what its annotations say."""
    match kind:
        case inspect.Metadata():
            bare, schema = _bare(kind.type)
            return bare, {**schema, **(kind.extra_json_schema or {})}
        case inspect.UnionType():
            choices = [choice for choice in kind.types if not isinstance(choice, inspect.NoneType)]
            return _bare(choices[-1])  # of a whole number or a fraction, the latter allows both
        case _:
            return kind, {}


def _kind_of(bare: inspect.Type, schema: Mapping[str, Any]) -> tuple[Kind, tuple[str, ...]]:
    if isinstance(bare, inspect.EnumType):
        return Kind.WORD, tuple(str(word.value) for word in bare.cls)
    if "enum" in schema:
        return Kind.WORD, tuple(schema["enum"])
    if isinstance(bare, inspect.BoolType):
        return Kind.FLAG, ("true", "false")
    if isinstance(bare, inspect.AnyType):
        return (Kind.NUMBER_OR_TEXT if ACCEPTED in schema else Kind.JSON), ()
    return _KINDS.get(type(bare), Kind.TEXT), ()


def _with_bounds(hint: str, bare: inspect.Type) -> str:
    if hint or not isinstance(bare, inspect.IntType | inspect.FloatType) or bare.ge is None or bare.le is None:
        return hint
    return f"From {bare.ge:,} to {bare.le:,}."


def text_of(kind: Kind, value: Any) -> str:
    """A value as its field shows it."""
    if value is None:
        return ""
    match kind:
        case Kind.JSON:
            return json.dumps(value, indent=2, ensure_ascii=False)
        case Kind.PAIRS:
            return "\n".join(f"{name}: {text}" for name, text in value.items())
        case Kind.INSTANT if isinstance(value, datetime):
            return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
        case Kind.FLAG:
            return "true" if value else "false"
        case _:
            return str(value)


def texts_of(job: Mapping[str, Any]) -> dict[str, str]:
    """The fields of a form that shows a job: its values, but those that are defaults anyway."""
    target = job["target"]
    found = {"name": str(job.get("name", "")), TARGET_TYPE: str(target["type"])}
    for field in _all(str(target["type"])):
        value = (target if field.path[0] == "target" else job).get(field.path[-1])
        text = text_of(field.kind, value)
        if text and (text != field.default or field.is_required):
            found[field.name] = text
    return found


def job_of(texts: Mapping[str, str]) -> tuple[dict[str, Any], list[Fault]]:
    """What a form says: the fields of a job as the contract takes them, and what cannot be read at all."""
    target_type = texts.get(TARGET_TYPE, DEFAULT_TYPE)
    target: dict[str, Any] = {"type": target_type}
    job: dict[str, Any] = {"name": texts["name"]} if texts.get("name") else {}
    faults = []
    for field in _all(target_type):
        text = texts.get(field.name, "")
        # The default of a list of words is sent though nobody chose it.
        if not text.strip() or (field.control == "select" and text == field.default):
            continue
        try:
            (target if field.path[0] == "target" else job)[field.path[-1]] = _value(field.kind, text)
        except ValueError as error:
            faults.append(Fault("/" + "/".join(field.path), str(error)))
    first: dict[str, Any] = {name: job.pop(name) for name in ("name", "schedule", "timezone") if name in job}
    return {**first, "target": target, **job}, faults


def _value(kind: Kind, text: str) -> Any:
    match kind:
        case Kind.NUMBER | Kind.NUMBER_OR_TEXT:
            return _number(text.strip())
        case Kind.FLAG:
            return {"true": True, "false": False}.get(text, text)
        case Kind.JSON:
            return read_json(text)
        case Kind.PAIRS:
            return dict(_pairs(text))
        case Kind.INSTANT:
            return text.strip()
        case _:
            return text


def _number(text: str) -> Any:
    for read in (int, float):
        try:
            return read(text)
        except ValueError:
            continue
    return text  # which the contract refuses, unless it is one that it knows


def read_json(text: str) -> Any:
    """A value that was typed as JSON. ValueError says what is wrong with it."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"is not JSON: {error.msg} at line {error.lineno}, column {error.colno}") from None
    except RecursionError:
        raise ValueError("is nested too deeply") from None


def _pairs(text: str) -> Iterator[tuple[str, str]]:
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        name, colon, value = line.partition(":")
        if not colon:
            raise ValueError(f"needs a name, a colon and a value in line {number}")
        yield name.strip(), value.strip()


def name_of(pointer: str, texts: Mapping[str, str]) -> str:
    """The field of the form that a pointer of the contract names; empty if it has none."""
    parts = tuple(pointer.removeprefix("/").split("/"))
    if parts == ("name",):
        return "name"
    if parts in {("target",), ("target", "type")}:
        return TARGET_TYPE
    for field in _all(texts.get(TARGET_TYPE, DEFAULT_TYPE)):
        if parts[: len(field.path)] == field.path:
            return field.name
    return ""
