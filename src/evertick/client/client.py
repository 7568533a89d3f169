"""`Client` and `AsyncClient`: the whole API, by subject."""

from typing import Any, Self

from evertick.client.access import ApiKeys, AuditLog, Tenants
from evertick.client.jobs import DeadLetters, Jobs, Runs, Workers
from evertick.client.request import RETRIES, Request, look, path_of, post, shaped
from evertick.client.transport import TIMEOUT_SECONDS, AsyncTransport, Section, Sent, SyncTransport, W, place_of
from evertick.contract.jobs import Preview
from evertick.contract.server import Cluster, Stats


class Api(Section[W]):
    """What a client offers, however it waits."""

    def __init__(self, transport: W) -> None:
        super().__init__(transport)
        self.jobs: Jobs[W] = Jobs(transport)
        self.runs: Runs[W] = Runs(transport)
        self.dead_letters: DeadLetters[W] = DeadLetters(transport)
        self.workers: Workers[W] = Workers(transport)
        self.tenants: Tenants[W] = Tenants(transport)
        self.api_keys: ApiKeys[W] = ApiKeys(transport)
        self.audit_log: AuditLog[W] = AuditLog(transport)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._transport.place.url}>"

    @Sent
    def preview(self, schedule: str, /, **options: Any) -> Request[Preview]:
        """What a schedule would do. Options as in the API: `timezone`, `count`, `after`, `jitter_seconds`, …"""
        return post(
            path_of("schedules", "preview"), shaped(Preview), {"schedule": schedule, **options}, is_change=False
        )

    @Sent
    def cluster(self) -> Request[Cluster]:
        """The nodes and partitions, and how late they are."""
        return look(path_of("cluster"), shaped(Cluster))

    @Sent
    def stats(self) -> Request[Stats]:
        """What the tenant's jobs did in the last minute."""
        return look(path_of("stats"), shaped(Stats))


class Client(Api[SyncTransport]):
    """The API for plain code. Without a URL or key of its own it uses EVERTICK_URL and EVERTICK_API_KEY.

    `retries` is how often a call is tried again that failed for the moment, if that cannot do anything twice.
    """

    def __init__(
        self,
        url: str | None = None,
        api_key: str | None = None,
        *,
        timeout: float = TIMEOUT_SECONDS,
        retries: int = RETRIES,
    ) -> None:
        super().__init__(SyncTransport(place_of(url, api_key, timeout, retries)))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._transport.close()


class AsyncClient(Api[AsyncTransport]):
    """The API for async code: as `Client`, each call awaited, each list an async iterator."""

    def __init__(
        self,
        url: str | None = None,
        api_key: str | None = None,
        *,
        timeout: float = TIMEOUT_SECONDS,
        retries: int = RETRIES,
    ) -> None:
        super().__init__(AsyncTransport(place_of(url, api_key, timeout, retries)))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self._transport.close()
