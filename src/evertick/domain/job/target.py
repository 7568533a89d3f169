"""What a run of a job is delivered to: an HTTP endpoint, or a handler of the workers that lease from a queue."""

from collections.abc import Mapping
from typing import TypeAlias

from msgspec import Struct

HTTP_QUEUE = "http"
"""Where the runs of HTTP jobs wait. Reserved: no worker target may name it."""

DEFAULT_QUEUE = "default"
DEFAULT_METHOD = "POST"


class HttpTarget(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, tag_field="type", tag="http"):
    """A request to `url` whose body is the payload."""

    url: str
    method: str = DEFAULT_METHOD
    headers: Mapping[str, str] = {}

    @property
    def queue_name(self) -> str:
        return HTTP_QUEUE

    def to_fields(self) -> dict[str, object]:
        return {"type": "http", "url": self.url, "method": self.method, "headers": dict(self.headers)}


class WorkerTarget(
    Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True, tag_field="type", tag="worker"
):
    """A worker's function, named by the word that workers and jobs agree on."""

    queue: str = DEFAULT_QUEUE
    handler: str

    @property
    def queue_name(self) -> str:
        return self.queue

    def to_fields(self) -> dict[str, object]:
        return {"type": "worker", "queue": self.queue, "handler": self.handler}


Target: TypeAlias = HttpTarget | WorkerTarget
