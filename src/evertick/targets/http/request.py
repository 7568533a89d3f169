"""What one attempt sends: the request's headers and body, made from the run. Pure; the caller brings the time."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Protocol
from urllib.parse import quote

from evertick.contract.events import BATCH_MEDIA_TYPE, FIRED, SOURCE, SPEC_VERSION
from evertick.contract.target import HttpTarget
from evertick.domain.schedule.instants import utc_text
from evertick.targets.http.signing import RUN_SIGNATURE, Secret, run_message, sign, sign_message
from evertick.version import __version__

USER_AGENT = f"Evertick/{__version__}"
REMEMBERED = 4096
_OURS = {"content-type", "accept-encoding"}

# CloudEvents' HTTP binding: visible ASCII stands for itself, but for the quote and the percent sign.
_SAFE = "".join(chr(code) for code in range(0x21, 0x7F) if chr(code) not in '"%')
_PLAIN = re.compile(f"[{re.escape(_SAFE)}]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryRequest:
    """One attempt of a run and where it goes. `body` is the payload as JSON; the secrets are all those that count.

    `fencing_token` is the number after the dot of the attempt's token, the part that grows.
    """

    tenant_id: int
    target: HttpTarget
    body: bytes
    secrets: tuple[Secret, ...]
    run_id: str
    job_id: str
    job_name: str
    scheduled_at: datetime
    attempt: int
    reason: str
    idempotency_key: str
    fencing_token: int
    traceparent: str

    def __post_init__(self) -> None:
        if not self.secrets:
            raise ValueError("a delivery is always signed: it needs a secret")

    def body_sent(self) -> bytes | None:
        return body_of(self)

    def headers_sent(self, sent_at: datetime, source: str) -> dict[str, str]:
        return headers_of(self, sent_at, source)


@dataclass(frozen=True, slots=True, kw_only=True)
class EventBatch:
    """Events that are sent together, as a batch of CloudEvents. `batch_id` is the same whenever they are sent again."""

    tenant_id: int
    target: HttpTarget
    body: bytes
    secrets: tuple[Secret, ...]
    batch_id: str

    def body_sent(self) -> bytes | None:
        return self.body

    def headers_sent(self, sent_at: datetime, source: str) -> dict[str, str]:  # noqa: ARG002 - each event has its own
        timestamp = int(sent_at.timestamp())
        own = {name: value for name, value in self.target.headers.items() if name.lower() not in _OURS}
        return {
            **own,
            "Content-Type": f"{BATCH_MEDIA_TYPE}; charset=UTF-8",
            "webhook-id": self.batch_id,
            "webhook-timestamp": str(timestamp),
            "webhook-signature": sign(self.secrets, self.batch_id, timestamp, self.body),
            "Idempotency-Key": self.batch_id,
            "User-Agent": USER_AGENT,
            "Accept-Encoding": "identity",
        }


class Sendable(Protocol):
    """What is sent to a URL for a tenant: an attempt, or a batch of events."""

    @property
    def tenant_id(self) -> int: ...
    @property
    def target(self) -> HttpTarget: ...

    def body_sent(self) -> bytes | None:
        """None: it has no body."""

    def headers_sent(self, sent_at: datetime, source: str) -> dict[str, str]:
        """All headers, signed for this time."""


def body_of(request: DeliveryRequest) -> bytes | None:
    """The payload, or None: a GET has no body."""
    return None if request.target.method == "GET" else request.body


def headers_of(request: DeliveryRequest, sent_at: datetime, source: str = SOURCE) -> dict[str, str]:
    """All headers: the job's own, which cannot replace ours, and ours."""
    body = body_of(request)
    timestamp = int(sent_at.timestamp())
    key = request.idempotency_key
    scheduled_at = utc_text(request.scheduled_at)
    job_name = header_text(request.job_name)
    headers = {
        **_own_headers(tuple(request.target.headers.items()), with_body=body is not None),
        "webhook-id": key,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": sign(request.secrets, key, timestamp, body or b""),
        "ce-specversion": SPEC_VERSION,
        "ce-id": request.run_id,
        "ce-source": f"{source}/jobs/{request.job_id}",
        "ce-type": FIRED,
        "ce-subject": job_name,
        "ce-time": scheduled_at,
        "Idempotency-Key": key,
        "Evertick-Run-Id": request.run_id,
        "Evertick-Job-Name": job_name,
        "Evertick-Scheduled-At": scheduled_at,
        "Evertick-Attempt": str(request.attempt),
        "Evertick-Reason": request.reason,
        "Evertick-Fencing-Token": str(request.fencing_token),
        "traceparent": request.traceparent,
        "User-Agent": USER_AGENT,
        "Accept-Encoding": "identity",
    }
    message = run_message(headers["webhook-signature"], headers)
    headers[RUN_SIGNATURE] = sign_message(request.secrets, message)
    return headers


@lru_cache(maxsize=REMEMBERED)
def _own_headers(given: tuple[tuple[str, str], ...], *, with_body: bool) -> Mapping[str, str]:
    """The job's headers and, where it names none, our type of content."""
    own = {name: value for name, value in given if name.lower() != "accept-encoding"}
    if with_body and not any(name.lower() == "content-type" for name in own):
        own["Content-Type"] = "application/json"
    return own


@lru_cache(maxsize=REMEMBERED)
def header_text(text: str) -> str:
    """A text as CloudEvents writes it in headers: what is not visible ASCII as the %XX of its UTF-8."""
    return text if _PLAIN.fullmatch(text) else quote(text, safe=_SAFE, errors="replace")
