"""What a run of a job is delivered to: an HTTP endpoint, a message broker, or a handler of the workers of a queue."""

import functools
import re
from collections.abc import Mapping
from typing import Annotated, Any, TypeAlias

from msgspec import NODEFAULT, Meta, Struct
from msgspec.structs import asdict, fields

from evertick.contract import patterns
from evertick.contract.annotations import Schema, accepted, checked
from evertick.contract.broker_targets import (
    BROKER_TARGETS,
    BrokerTarget,
    BrokerType,
    KafkaTarget,
    NatsTarget,
    RabbitmqTarget,
    RedisStreamTarget,
    SqsTarget,
)
from evertick.domain.job.faults import Faults
from evertick.domain.job.http_target import MAX_HEADERS, URL_MAX_LENGTH, check_headers, check_url

HTTP_QUEUE = "http"
DISPATCHED_QUEUES = (HTTP_QUEUE, *BrokerType)
"""Where the runs wait that dispatchers deliver, each named like the type of their targets. No worker target may name
them. The database knows them too: `queues.is_dispatched`.
"""

DEFAULT_QUEUE = "default"
HANDLER_MAX_LENGTH = 255
DEFAULT_METHOD = "POST"
METHODS = ("POST", "PUT", "PATCH", "GET", "DELETE")

_is_queue_name = functools.lru_cache(maxsize=1024)(re.compile(patterns.QUEUE).fullmatch)


def check_method(method: str, at: str, faults: Faults) -> None:
    if method not in METHODS:
        faults.add(at, f"must be one of {', '.join(METHODS)}")


def check_queue(name: str, at: str, faults: Faults) -> None:
    if name in DISPATCHED_QUEUES:
        faults.add(at, f"{name!r} is reserved for {'HTTP' if name == HTTP_QUEUE else name} targets")
    elif not _is_queue_name(name):
        faults.add(at, "must be 1 to 63 characters of a-z, 0-9, '.', '_' and '-', the first a letter or digit")


def check_handler(name: str, at: str, faults: Faults) -> None:
    if not 1 <= len(name) <= HANDLER_MAX_LENGTH or " " in name or not name.isprintable():
        faults.add(at, f"must be 1 to {HANDLER_MAX_LENGTH} visible characters")


WORKER_QUEUE: Schema = {"pattern": patterns.QUEUE, "not": {"enum": list(DISPATCHED_QUEUES)}}
Queue = Annotated[
    str,
    Meta(extra_json_schema=WORKER_QUEUE),
    checked(check_queue),
]


class HttpTarget(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, tag_field="type", tag="http"):
    """A request to `url` whose body is the payload."""

    url: Annotated[
        str,
        Meta(extra_json_schema={"maxLength": URL_MAX_LENGTH}),
        accepted(pattern=patterns.URL),
        checked(check_url),
    ]
    method: Annotated[str, Meta(extra_json_schema={"enum": list(METHODS)}), checked(check_method)] = DEFAULT_METHOD
    headers: Annotated[
        Mapping[str, Annotated[str, Meta(extra_json_schema={"pattern": patterns.HEADER_VALUE})]],
        Meta(extra_json_schema={"propertyNames": {"pattern": patterns.HEADER_NAME}, "maxProperties": MAX_HEADERS}),
        checked(check_headers),
    ] = {}
    circuit_breaker: Annotated[
        bool, Meta(description="Whether its runs are deferred while the circuit breaker of its host is open.")
    ] = True

    @property
    def queue_name(self) -> str:
        return HTTP_QUEUE


class WorkerTarget(
    Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True, tag_field="type", tag="worker"
):
    """A worker's function, named by the word that workers and jobs agree on."""

    queue: Queue = DEFAULT_QUEUE
    handler: Annotated[str, accepted(pattern=patterns.HANDLER), checked(check_handler)]

    @property
    def queue_name(self) -> str:
        return self.queue


Target: TypeAlias = (
    HttpTarget | WorkerTarget | KafkaTarget | RabbitmqTarget | RedisStreamTarget | NatsTarget | SqsTarget
)
TARGETS: tuple[type[HttpTarget | WorkerTarget | BrokerTarget], ...] = (HttpTarget, WorkerTarget, *BROKER_TARGETS)
_DEFAULTS: dict[str, dict[str, Any]] = {
    str(kind.__struct_config__.tag): {
        field.name: field.default if field.default is not NODEFAULT else field.default_factory()
        for field in fields(kind)
        if not field.required
    }
    for kind in TARGETS
}


def target_fields(target: Target | Mapping[str, Any]) -> dict[str, Any]:
    """Every member of a target, or of one that is stored without its defaults; the circuit breaker if it is off."""
    if isinstance(target, Mapping):
        found = {"type": target["type"], **_DEFAULTS.get(target["type"], {}), **target}
    else:
        found = {"type": target.__struct_config__.tag, **asdict(target)}
    if found.get("circuit_breaker"):
        del found["circuit_breaker"]
    return found
