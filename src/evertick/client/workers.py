"""Calls of workers that pull. `evertick.Worker` makes them for you."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from evertick.client.request import Request, change, path_of, post, shaped
from evertick.client.sections import Section, Sent, W
from evertick.contract.workers import Heartbeat, Lease, OutcomeReport, Recorded

_read_lease = shaped(Lease)
_read_beat = shaped(Heartbeat)
_read_recorded = shaped(Recorded)


class Workers(Section[W]):
    """Leasing attempts, keeping them, and telling how they ended."""

    @Sent
    def lease(  # noqa: PLR0913 - the fields of the request
        self,
        queue: str,
        worker_id: str,
        *,
        max: int = 100,  # noqa: A002 - the API's name
        wait_seconds: float = 20.0,
        handlers: Sequence[str] | None = None,
        idempotency_key: str | None = None,
    ) -> Request[Lease]:
        """Lease up to `max` attempts, of these handlers or any; waits for the first for up to `wait_seconds`.

        With an idempotency key, an answer that got lost comes again; the server then keeps a copy of it for a day.
        """
        path = path_of("queues", queue, "lease")
        body: dict[str, Any] = {"worker_id": worker_id, "max": max, "wait_seconds": wait_seconds}
        if handlers is not None:
            body["handlers"] = list(handlers)
        if idempotency_key is None:
            return replace(change("POST", path, _read_lease, body), may_take=wait_seconds)
        return replace(post(path, _read_lease, body, key=idempotency_key), may_take=wait_seconds)

    @Sent
    def heartbeat(self, worker_id: str, tokens: Sequence[str] | None = None) -> Request[Heartbeat]:
        """Keep what the worker has leased: of these attempts, or all of it.

        Of the tokens, those that it has lost come back among those to stop.
        """
        body = {} if tokens is None else {"tokens": tokens}
        return post(path_of("workers", worker_id, "heartbeat"), _read_beat, body, is_change=False)

    @Sent
    def record(self, worker_id: str, outcomes: Iterable[OutcomeReport]) -> Request[Recorded]:
        """Tell how attempts ended. Told again, what counted the first time is among the stale."""
        body = {"worker_id": worker_id, "outcomes": list(outcomes)}
        return post(path_of("outcomes"), _read_recorded, body, is_change=False)
