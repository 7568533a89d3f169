"""The request of a webhook as the page of its run shows it: all its headers, but values that only the delivery knew."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from evertick.contract.runs import Attempt, RunDetail
from evertick.contract.target import HttpTarget
from evertick.domain.ids import parse_token
from evertick.targets.http.request import DeliveryRequest, headers_of
from evertick.targets.http.signing import RUN_SIGNATURE, SHORTEST_KEY, Secret

UNKNOWN = "…"
_KNOWN_TO_THE_DELIVERY = {
    *("webhook-id", "Idempotency-Key"),  # those of a replay are of the run that it repeats
    *("webhook-timestamp", "webhook-signature", RUN_SIGNATURE),
    *("traceparent", "ce-source", "User-Agent"),
}


class RequestShown(NamedTuple):
    """What was sent over HTTP for an attempt."""

    attempt: int
    method: str
    url: str
    headers: dict[str, str]


def request_shown(run: RunDetail, attempt: Attempt, target: Mapping[str, Any]) -> RequestShown | None:
    """The request of an attempt. None: it goes to a worker or a broker."""
    if "url" not in target:
        return None
    sent = HttpTarget(target["url"], target.get("method", "POST"), target.get("headers", {}))
    request = DeliveryRequest(
        tenant_id=0,
        target=sent,
        body=b"",
        secrets=(Secret(bytes(SHORTEST_KEY)),),
        run_id=run.run_id,
        job_id=run.job_id,
        job_name=run.name or "",
        scheduled_at=run.scheduled_at,
        attempt=attempt.attempt,
        reason=str(run.reason),
        idempotency_key="-",
        fencing_token=parse_token(attempt.token).seq,
        traceparent="-",
    )
    headers = {
        name: UNKNOWN if name in _KNOWN_TO_THE_DELIVERY else value
        for name, value in headers_of(request, run.scheduled_at).items()
    }
    return RequestShown(attempt.attempt, str(sent.method), sent.url, headers)
