"""What no schema can tell schemathesis: that a poll waits on purpose, that a key is used once, how lines are sent,
which version is the latest, which tenant is its own, which connections there are.

Nor does it look at the pattern of a header in all its phases, unless the format is one that it knows.
"""

import json
import re
import secrets
from typing import Any

import msgspec
import schemathesis
from hypothesis import strategies

from evertick.api.bodies.request_body import NDJSON
from evertick.contract.broker_targets import BrokerType
from evertick.contract.patterns import CONNECTION, IDEMPOTENCY_KEY, IF_MATCH
from evertick.contract.workers import LONGEST_POLL_SECONDS
from evertick.domain.ids import Prefix, format_id

_KEY = "Idempotency-Key"
_OWN, _NOBODYS = (format_id(Prefix.TENANT, number) for number in (1, 999_999_999))

schemathesis.openapi.format("entity-tag", strategies.from_regex(IF_MATCH, fullmatch=True))


@schemathesis.hook
def before_call(context: Any, case: Any, kwargs: Any) -> None:
    _cut_wait(case)
    _use_once(case)
    _match_any(case)
    _spare_own_quota(case)
    _name_connection(case)


def _name_connection(case: Any) -> None:
    """Name the connection that there is of each type, if a connection could have the name that was chosen."""
    for member in ("target", "sink"):
        target = case.body.get(member) if isinstance(case.body, dict) else None
        if not isinstance(target, dict) or target.get("type") not in list(BrokerType):
            continue
        name = target.get("connection")
        if isinstance(name, str) and re.fullmatch(CONNECTION, name):
            case.body = {**case.body, member: {**target, "connection": target["type"]}}


def _cut_wait(case: Any) -> None:
    """Wait for nothing: twenty seconds for each of a thousand tries would be hours. What is invalid stays so."""
    if not case.operation.path.endswith("/lease") or not isinstance(case.body, dict):
        return
    wait = case.body.get("wait_seconds", 0)
    if isinstance(wait, int | float) and not isinstance(wait, bool) and 0 <= wait <= LONGEST_POLL_SECONDS:
        case.body = {**case.body, "wait_seconds": 0}


def _use_once(case: Any) -> None:
    """A key that was used before for something else is refused, and rightly so."""
    key = (case.headers or {}).get(_KEY)
    if isinstance(key, str) and len(key) <= 255 and re.fullmatch(IDEMPOTENCY_KEY, key):
        case.headers[_KEY] = secrets.token_hex(16)


def _match_any(case: Any) -> None:
    """A version that is out of date, or of what is not there, is refused (412) before anybody looks at the body."""
    tags = (case.headers or {}).get("If-Match")
    if not isinstance(tags, str) or not re.fullmatch(IF_MATCH, tags):
        return
    if case.operation.path.endswith("/by-name/{name}"):
        del case.headers["If-Match"]
    else:
        case.headers["If-Match"] = "*"


def _spare_own_quota(case: Any) -> None:
    """Who takes all quota from itself is refused everywhere, and finds nothing for that reason."""
    if case.operation.path.endswith("/tenants/{tenant_id}") and case.path_parameters.get("tenant_id") == _OWN:
        case.path_parameters["tenant_id"] = _NOBODYS


@schemathesis.deserializer(NDJSON)
def text_of(context: Any, response: Any) -> str:
    text: str = response.content.decode()
    assert all(isinstance(json.loads(line), dict) for line in text.splitlines())
    return text


@schemathesis.serializer(NDJSON)
def lines(context: Any, value: Any) -> bytes:
    return value.encode() if isinstance(value, str) else msgspec.json.encode(value)
