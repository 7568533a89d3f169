"""Gates: how many runs with one key are at work at once, and in which order they pass.

A gate belongs to a tenant and a key: a job's `concurrency_key` or `ordering_key`, rendered from the payload of a run.
Where a job has only `max_running`, the gate is its own. All runs of a gate share its places.
"""

import functools
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple, TypeAlias

from evertick.domain.errors import InvalidInput
from evertick.domain.stable_hash import stable_int

KEY_MAX_LENGTH = 255

_PLACEHOLDER = re.compile(r"\{\{([^{}]*)\}\}")
_PREFIX = "payload."
_IDS = 2**63 - 1


class WaitingFor(StrEnum):
    """What a run waits for although it is due."""

    CONCURRENCY = "concurrency"  # for a place: as many runs as may be are at work
    ORDERING = "ordering"  # for its turn: runs that come before it are not over


def waiting_for(gate_id: int) -> WaitingFor:
    return WaitingFor.ORDERING if gate_id < 0 else WaitingFor.CONCURRENCY


@dataclass(frozen=True, slots=True)
class PayloadField:
    """A top-level field of the payload."""

    name: str


KeyTemplate: TypeAlias = tuple[str | PayloadField, ...]


class GateFields(NamedTuple):
    """What a job says about its gate. It has at most one key."""

    max_running: int | None
    concurrency_key: str | None
    ordering_key: str | None

    @property
    def key(self) -> tuple[str, str] | None:
        """The field that has a key, and the key."""
        if self.ordering_key is not None:
            return "ordering_key", self.ordering_key
        return None if self.concurrency_key is None else ("concurrency_key", self.concurrency_key)

    @property
    def limit(self) -> int | None:
        """How many runs may be inside the gate at once; None: there is no gate."""
        return self.max_running if self.key is None else self.max_running or 1


def gate_of(fields: GateFields, tenant_id: int, job_id: int, payload: object) -> int | None:
    """The gate of a run with this payload; None: it has none. InvalidInput: the payload lacks what the key names.

    A negative id: the gate keeps the order of fire times.
    """
    if fields.key is None:
        return None if fields.max_running is None else _id("job", tenant_id, job_id)
    name, text = fields.key
    gate_id = _id(name, tenant_id, render_key(name, text, payload))
    return -gate_id if name == "ordering_key" else gate_id


def _id(*parts: str | int) -> int:
    return stable_int(_IDS, "gate", *parts) + 1


@functools.lru_cache(maxsize=1024)
def parse_key(field: str, text: str) -> KeyTemplate:
    """Check and split a key; InvalidInput says what is wrong with it."""
    if not 1 <= len(text) <= KEY_MAX_LENGTH:
        raise InvalidInput(field, f"must have 1 to {KEY_MAX_LENGTH} characters, not {len(text)}")
    # `split` with one group alternates: literal, name, literal, name, …, literal.
    parts = _PLACEHOLDER.split(text)
    pieces = [_field(field, part) if index % 2 else _literal(field, part) for index, part in enumerate(parts)]
    return tuple(piece for piece in pieces if piece)


def _literal(field: str, text: str) -> str:
    if brace := next((char for char in text if char in "{}"), None):
        raise InvalidInput(field, f"has a stray {brace!r}: a field is written {{{{payload.account}}}}")
    return text


def _field(field: str, text: str) -> PayloadField:
    name = text.strip(" ")
    if not name.startswith(_PREFIX) or name == _PREFIX:
        raise InvalidInput(field, f"has the unknown placeholder {name!r}: a field is written {{{{payload.account}}}}")
    return PayloadField(name.removeprefix(_PREFIX))


def render_key(field: str, text: str, payload: object) -> str:
    """The key of a run with this payload. Booleans are written as JSON writes them; so are numbers, 1.0 as 1."""
    return "".join(
        piece if isinstance(piece, str) else _value(field, piece.name, payload) for piece in parse_key(field, text)
    )


def _value(field: str, name: str, payload: object) -> str:
    value = payload.get(name) if isinstance(payload, Mapping) else None
    if value is None:
        raise InvalidInput("payload", f"has no field {name!r}, which {field} names")
    if not isinstance(value, str | int | float):
        raise InvalidInput(
            "payload", f"its field {name!r}, which {field} names, must be a string, a number or a boolean"
        )
    if isinstance(value, str):
        return value
    return json.dumps(int(value) if isinstance(value, float) and value.is_integer() else value)
