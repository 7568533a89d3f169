"""`Client` and `AsyncClient`: the whole API, by subject. Calls are in `jobs`, `runs`, `workers` and `operations`."""

from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

from evertick.client.jobs import JobCalls
from evertick.client.request import RETRIES, Request, fetch, path_of, post, struct_of
from evertick.client.transport import (
    TIMEOUT_SECONDS,
    AsyncTransport,
    Call,
    Calls,
    ServerSettings,
    SyncTransport,
    W,
    server_settings,
)

if TYPE_CHECKING:
    from evertick.client.operations import (
        AlertCalls,
        ApiKeyCalls,
        AuditLogCalls,
        ConnectionCalls,
        EventCalls,
        ForecastCalls,
        TargetCalls,
        TenantCalls,
    )
    from evertick.client.runs import DeadLetterCalls, ReplayCalls, RunCalls
    from evertick.client.workers import QueueCalls, WorkerCalls
    from evertick.contract.jobs import Preview
    from evertick.contract.server import Attention, Cluster, Stats


class Api(Calls[W]):
    """The calls of both clients."""

    def __init__(
        self,
        url: str | None = None,
        api_key: str | None = None,
        *,
        timeout: float = TIMEOUT_SECONDS,
        retries: int = RETRIES,
    ) -> None:
        transport = self._open(server_settings(url, api_key, timeout, retries))
        super().__init__(transport)
        self.jobs: JobCalls[W] = JobCalls(transport)

    def _open(self, server: ServerSettings) -> W:
        raise NotImplementedError

    @cached_property
    def runs(self) -> "RunCalls[W]":
        from evertick.client.runs import RunCalls  # noqa: PLC0415 - imported when they are asked for

        return RunCalls(self._transport)

    @cached_property
    def dead_letters(self) -> "DeadLetterCalls[W]":
        from evertick.client.runs import DeadLetterCalls  # noqa: PLC0415 - imported when they are asked for

        return DeadLetterCalls(self._transport)

    @cached_property
    def replays(self) -> "ReplayCalls[W]":
        from evertick.client.runs import ReplayCalls  # noqa: PLC0415 - imported when they are asked for

        return ReplayCalls(self._transport)

    @cached_property
    def workers(self) -> "WorkerCalls[W]":
        from evertick.client.workers import WorkerCalls  # noqa: PLC0415 - imported when they are asked for

        return WorkerCalls(self._transport)

    @cached_property
    def queues(self) -> "QueueCalls[W]":
        from evertick.client.workers import QueueCalls  # noqa: PLC0415 - imported when they are asked for

        return QueueCalls(self._transport)

    @cached_property
    def targets(self) -> "TargetCalls[W]":
        from evertick.client.operations import TargetCalls  # noqa: PLC0415 - imported when they are asked for

        return TargetCalls(self._transport)

    @cached_property
    def connections(self) -> "ConnectionCalls[W]":
        from evertick.client.operations import ConnectionCalls  # noqa: PLC0415 - imported when they are asked for

        return ConnectionCalls(self._transport)

    @cached_property
    def alerts(self) -> "AlertCalls[W]":
        from evertick.client.operations import AlertCalls  # noqa: PLC0415 - imported when they are asked for

        return AlertCalls(self._transport)

    @cached_property
    def events(self) -> "EventCalls[W]":
        from evertick.client.operations import EventCalls  # noqa: PLC0415 - imported when they are asked for

        return EventCalls(self._transport)

    @cached_property
    def forecast(self) -> "ForecastCalls[W]":
        from evertick.client.operations import ForecastCalls  # noqa: PLC0415 - imported when they are asked for

        return ForecastCalls(self._transport)

    @cached_property
    def tenants(self) -> "TenantCalls[W]":
        from evertick.client.operations import TenantCalls  # noqa: PLC0415 - imported when they are asked for

        return TenantCalls(self._transport)

    @cached_property
    def api_keys(self) -> "ApiKeyCalls[W]":
        from evertick.client.operations import ApiKeyCalls  # noqa: PLC0415 - imported when they are asked for

        return ApiKeyCalls(self._transport)

    @cached_property
    def audit_log(self) -> "AuditLogCalls[W]":
        from evertick.client.operations import AuditLogCalls  # noqa: PLC0415 - imported when they are asked for

        return AuditLogCalls(self._transport)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._transport.server.url}>"

    @Call
    def preview(self, schedule: str, /, **options: Any) -> "Request[Preview]":
        """What a schedule would do. Options as in the API: `timezone`, `count`, `after`, `jitter_seconds`, …"""
        from evertick.contract.jobs import Preview  # noqa: PLC0415 - imported when they are asked for

        return post(
            path_of("schedules", "preview"), struct_of(Preview), {"schedule": schedule, **options}, is_change=False
        )

    @Call
    def cluster(self) -> "Request[Cluster]":
        """The nodes and partitions, and their lag."""
        from evertick.contract.server import Cluster  # noqa: PLC0415 - imported when they are asked for

        return fetch(path_of("cluster"), struct_of(Cluster))

    @Call
    def attention(self) -> "Request[Attention]":
        """What needs attention, and what comes next."""
        from evertick.contract.server import Attention  # noqa: PLC0415 - imported when they are asked for

        return fetch(path_of("attention"), struct_of(Attention))

    @Call
    def stats(self) -> "Request[Stats]":
        """What the tenant's jobs did in the last minute."""
        from evertick.contract.server import Stats  # noqa: PLC0415 - imported when they are asked for

        return fetch(path_of("stats"), struct_of(Stats))


class Client(Api[SyncTransport]):
    """The API for sync code. Without a URL or key it uses EVERTICK_URL and EVERTICK_API_KEY.

    `retries` is how often a call is repeated that failed temporarily, if repeating it cannot change anything twice.
    """

    def _open(self, server: ServerSettings) -> SyncTransport:
        from evertick.client.httpx_transport import HttpxTransport  # noqa: PLC0415 - the command line does without it

        return HttpxTransport(server)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._transport.close()


class AsyncClient(Api[AsyncTransport]):
    """The API for async code: as `Client`, but each call is awaited, and each list is an async iterator."""

    def _open(self, server: ServerSettings) -> AsyncTransport:
        from evertick.client.httpx_transport import AsyncHttpxTransport  # noqa: PLC0415 - as above

        return AsyncHttpxTransport(server)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self._transport.close()


class PlainClient(AsyncClient):
    """As `AsyncClient`, for a server that is called over plain http and a program that does one thing at a time."""

    def _open(self, server: ServerSettings) -> AsyncTransport:
        from evertick.client.plain_transport import PlainTransport  # noqa: PLC0415 - for the command line alone

        return PlainTransport(server)
