"""Calls about workers that pull attempts, and about queues."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from evertick.client.request import Request, change, fetch, path_of, post, struct_of
from evertick.client.transport import Call, Calls, PagedCall, W
from evertick.contract.workers import Heartbeat, Lease, OutcomeReport, Queue, Recorded, Worker
from evertick.domain.backpressure import DEFAULT_MAX_READY

QueuePage: TypeAlias = list[Queue]
WorkerPage: TypeAlias = list[Worker]


class WorkerCalls(Calls[W]):
    """Lease attempts, extend their leases, and record their outcomes. `evertick.Worker` makes these calls for you."""

    @PagedCall
    def list(self, *, page_size: int | None = None) -> Request[WorkerPage]:
        """The workers and dispatchers, by name, with the queues and handlers that each serves."""
        return fetch(path_of("workers"), struct_of(WorkerPage), limit=page_size)

    @Call
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
        """Lease up to `max` attempts, of these handlers or of any. Waits up to `wait_seconds` for the first.

        With an idempotency key, a repeated call gets the same answer. The server keeps a copy of it for a day.
        """
        path = path_of("queues", queue, "lease")
        body: dict[str, Any] = {"worker_id": worker_id, "max": max, "wait_seconds": wait_seconds}
        if handlers is not None:
            body["handlers"] = list(handlers)
        if idempotency_key is None:
            return dataclasses.replace(change("POST", path, struct_of(Lease), body), may_take=wait_seconds)
        return dataclasses.replace(post(path, struct_of(Lease), body, key=idempotency_key), may_take=wait_seconds)

    @Call
    def heartbeat(
        self, worker_id: str, tokens: Sequence[str] | None = None, progress: Mapping[str, str] | None = None
    ) -> Request[Heartbeat]:
        """Extend the leases of these attempts, or of all that the worker has, and say how far they are.

        Tokens of lost leases are returned among those to stop.
        """
        given = {"tokens": tokens, "progress": progress}
        body = {name: value for name, value in given.items() if value is not None}
        return post(path_of("workers", worker_id, "heartbeat"), struct_of(Heartbeat), body, is_change=False)

    @Call
    def record(
        self, worker_id: str, outcomes: Iterable[OutcomeReport], *, with_dead: bool = False
    ) -> Request[Recorded]:
        """Record outcomes. Outcomes that were recorded before are returned as stale.

        `with_dead`: failures that no attempt follows are named.
        """
        body: dict[str, Any] = {"worker_id": worker_id, "outcomes": list(outcomes)}
        if with_dead:
            body["with_dead"] = True
        return post(path_of("outcomes"), struct_of(Recorded), body, is_change=False)


class QueueCalls(Calls[W]):
    """Queues, what limits them, how full they are, and who serves them."""

    @PagedCall
    def list(self, *, page_size: int | None = None) -> Request[QueuePage]:
        """The queues, by name."""
        return fetch(path_of("queues"), struct_of(QueuePage), limit=page_size)

    @Call
    def get(self, queue: str) -> Request[Queue]:
        """A queue by its name."""
        return fetch(path_of("queues", queue), struct_of(Queue))

    @Call
    def update(
        self,
        queue: str,
        *,
        max_running: int | None = None,
        max_ready: int = DEFAULT_MAX_READY,
        rate_limit: float | None = None,
        rate_burst: int | None = None,
    ) -> Request[Queue]:
        """Replace the limits of a queue: how many attempts run at once and how many start per second, in all workers
        together (None: no limit), and how many may wait.
        """
        limits = {
            "max_running": max_running,
            "max_ready": max_ready,
            "rate_limit": rate_limit,
            "rate_burst": rate_burst,
        }
        return change("PUT", path_of("queues", queue), struct_of(Queue), limits)
