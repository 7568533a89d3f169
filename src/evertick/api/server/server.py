"""The API as a role of a process: a server that starts and stops with the others and leaves signals to them."""

import asyncio
import functools
import logging
import socket
from collections.abc import Callable
from contextlib import AsyncExitStack
from datetime import timedelta

import uvicorn

from evertick.api.app import AsgiApp
from evertick.api.bodies.memory_limits import MEBIBYTE, BodyLimits
from evertick.api.event_readers import EventReaders
from evertick.api.long_polls import LongPolls
from evertick.api.messages import parse_bearer
from evertick.api.operations import NO_SITE, Site
from evertick.api.pulling_workers import PullingWorkers
from evertick.api.replica import Replica
from evertick.api.server import connections, tls
from evertick.api.server.connection_limits import ConnectionLimits, LimitedConnection, RequestQueue
from evertick.api.server.tls import Certificate, MakeProtocol, TlsListener
from evertick.api.services import LEASE_CONNECTIONS, REPORT_CONNECTIONS, Services
from evertick.config.settings import DEFAULTS, Settings, is_loopback
from evertick.metrics.catalog import EVENT_STREAMS, HTTP_REFUSED, LONG_POLLS, LOOP_DELAY
from evertick.runtime import timeouts
from evertick.runtime.archive import open_archive
from evertick.runtime.gates import Gates
from evertick.runtime.loop import Loop, LoopDelay
from evertick.runtime.process import CannotListen, descriptor_limit
from evertick.runtime.queue_rates import QueueRates
from evertick.runtime.rate_buckets import open_buckets
from evertick.runtime.rate_slices import RateSlices
from evertick.runtime.wakeups import Notifier
from evertick.store.database import Pool, open_pool
from evertick.store.location import DatabaseAddress, replica_of
from evertick.store.tenants import sessions
from evertick.usecases.tenants.connections import ConnectionAccess
from evertick.usecases.tenants.keys import KeyRing
from evertick.usecases.tenants.quotas import Quotas

logger = logging.getLogger("evertick.api")

CONNECTIONS = 16
RESERVED_CONNECTIONS = 4
"""For keys and for probes: they are answered whatever requests and workers wait for."""
GRACE_SECONDS = 10
BACKLOG = 1024
"""Connections that the kernel keeps until they are accepted; all of them may be accepted before one is counted."""


class ApiServer:
    """Serves the API on one address, and a site beside it.

    `max_connections` of the settings counts clients; half of the descriptors that the process may open are left for all
    else. `connections` are those to the database, for requests without connections of their own.
    """

    def __init__(  # noqa: PLR0913 - the first two for all, the others for a few, by name
        self,
        url: DatabaseAddress,
        settings: Settings = DEFAULTS,
        *,
        connections: int = CONNECTIONS,
        bodies: BodyLimits | None = None,
        requests: RequestQueue | None = None,
        site: Site = NO_SITE,
    ) -> None:
        self._url = url
        self._site = site
        self._settings = settings
        self._port = settings.port
        self._connections = connections
        self._bodies = bodies or BodyLimits(
            per_tenant=round(settings.body_memory_mib_per_tenant * MEBIBYTE),
            total=round(settings.body_memory_mib * MEBIBYTE),
        )
        self._requests = requests or RequestQueue()
        self._stack = AsyncExitStack()

    @property
    def address(self) -> str:
        """Where it is, once it was started; with a port of 0, a free one was chosen."""
        host = self._settings.host
        host = f"[{host}]" if ":" in host else host
        scheme = "http" if self._settings.tls_cert is None else "https"
        return f"{scheme}://{host}:{self._port}"

    async def start(self) -> None:
        """Listen. When this returns, requests are answered."""
        certificate = self._certificate()
        listener = _listen(self._settings.host, self._port)
        self._stack.callback(listener.close)
        self._port = listener.getsockname()[1]
        services = await self._services()
        limits = self._limits()
        config = uvicorn.Config(
            AsgiApp(services, self._site, self._settings.path_prefix or ""),
            http=functools.partial(  # type: ignore[arg-type]
                connections.HttpConnection,
                limits=limits,
                requests=self._requests,
                tenant_of=functools.partial(_tenant_of, services.keys),
            ),
            backlog=BACKLOG,
            proxy_headers=False,  # nothing depends on the address of a client behind a proxy
            timeout_keep_alive=connections.KEEP_ALIVE_SECONDS,
            log_config=None,
            access_log=False,
            server_header=False,
            lifespan="off",
            timeout_graceful_shutdown=GRACE_SECONDS,
        )
        server = _Server(config)
        accepted = [listener] if certificate is None else []
        serving = asyncio.create_task(server.serve(sockets=accepted), name="api")
        self._stack.push_async_callback(self._end, server, serving, services)
        await server.is_up.wait()
        if certificate is not None:
            self._secure(listener, certificate, limits, server.protocol)

    async def stop(self) -> None:
        """Answer requests under way, end long polls, and close."""
        await self._stack.aclose()

    def _certificate(self) -> Certificate | None:
        if self._settings.tls_cert is None or self._settings.tls_key is None:
            return None
        return Certificate(self._settings.tls_cert, self._settings.tls_key)

    def _secure(
        self, listener: socket.socket, certificate: Certificate, limits: ConnectionLimits, make: MakeProtocol
    ) -> None:
        listener.listen(BACKLOG)
        secured = TlsListener(listener, certificate, limits, make)
        secured.start()
        self._stack.push_async_callback(secured.stop)
        refreshing = Loop("certificate", lambda: _refresh(certificate))
        refreshing.start()
        self._stack.push_async_callback(refreshing.stop)

    async def _services(self) -> Services:
        pool = await self._pool("api", self._connections)
        leases = await self._pool("api_leases", LEASE_CONNECTIONS)
        reports = await self._pool("api_reports", REPORT_CONNECTIONS)
        reserved = await self._pool("api_reserved", RESERVED_CONNECTIONS)
        notifier = Notifier(pool)
        notifier.start()
        self._stack.push_async_callback(notifier.stop)
        gates = Gates(pool, notifier.put_back)
        gates.loop.start()
        self._stack.push_async_callback(gates.loop.stop)
        settings = self._settings
        polls = LongPolls(
            self._url, leases, per_tenant=settings.max_long_polls_per_tenant, in_total=settings.max_long_polls
        )
        polls.start()
        self._stack.push_async_callback(polls.stop)
        pulling = PullingWorkers(reserved)
        pulling.start()
        self._stack.push_async_callback(pulling.stop)
        readers = EventReaders(reserved)
        readers.start()
        self._stack.push_async_callback(readers.stop)
        buckets = await self._stack.enter_async_context(open_buckets(reserved, settings.redis_url))
        services = Services(
            pool=pool,
            leases=leases,
            reports=reports,
            reserved=reserved,
            notifier=notifier,
            gates=gates,
            polls=polls,
            pulling_workers=pulling,
            event_readers=readers,
            keys=KeyRing(reserved),
            sessions=KeyRing(reserved, sessions.of_digests),
            login_rates=RateSlices(buckets),
            session_time=timedelta(hours=settings.session_hours),
            quotas=Quotas(pool, buckets, settings.max_ready),
            queue_rates=QueueRates(RateSlices(buckets)),
            lease_time=settings.lease_time,
            lifetime=settings.heartbeat_timeout,
            bodies=self._bodies,
            connections=ConnectionAccess(settings),
            is_metrics_open=_is_metrics_open(settings),
            metrics_key=settings.metrics_key,
            result_max_bytes=settings.result_max_bytes,
            archive=await self._stack.enter_async_context(open_archive(settings)),
            replica=await self._replica(reserved),
        )
        self._stack.callback(LONG_POLLS.watch_value(lambda: polls.count))
        self._stack.callback(EVENT_STREAMS.watch_value(lambda: len(readers)))
        delay = LoopDelay(LOOP_DELAY.of().observe)
        delay.start()
        self._stack.push_async_callback(delay.stop)
        return services

    def _limits(self) -> ConnectionLimits:
        wanted = self._settings.max_connections
        most = min(wanted, descriptor_limit() // 2)
        if most < wanted:
            logger.warning(
                "the API accepts %d connections instead of %d: the process may not open more files (ulimit -n)",
                most,
                wanted,
            )
        limits = ConnectionLimits(
            most,
            self._settings.max_connections_per_address,
            lambda reason: HTTP_REFUSED.add(1, reason),
            self._settings.trusted_proxies,
        )
        sweeping = Loop("connections", lambda: _sweep(limits))
        sweeping.start()
        self._stack.push_async_callback(sweeping.stop)
        return limits

    async def _pool(self, purpose: str, connections: int) -> Pool:
        pool = await open_pool(self._url, min_size=1, max_size=connections, timeouts=timeouts.API, purpose=purpose)
        self._stack.push_async_callback(pool.close)
        return pool

    async def _replica(self, reserved: Pool) -> Replica | None:
        url = replica_of(self._settings)
        if url is None:
            return None
        replica = Replica(url, reserved, self._settings.database_replica_max_lag_seconds)
        await replica.start()
        self._stack.push_async_callback(replica.stop)
        return replica

    @staticmethod
    async def _end(server: "_Server", serving: "asyncio.Task[None]", services: Services) -> None:
        server.should_exit = True
        services.polls.end_all()
        services.event_readers.end_all()
        await serving


class _Server(uvicorn.Server):
    """Uvicorn without signal handlers of its own: they are the process's."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.is_up = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.is_up.set()

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        await self._serve(sockets)

    def protocol(self, handshake: LimitedConnection) -> asyncio.Protocol:
        """What Uvicorn makes for a connection that it accepts itself."""
        make: Callable[..., asyncio.Protocol] = self.config.http_protocol_class
        return make(
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state, handshake=handshake
        )


def _tenant_of(keys: KeyRing, header: str) -> int | None:
    secret = parse_bearer(header)
    return None if secret is None else keys.last_seen(secret)


def _is_metrics_open(settings: Settings) -> bool:
    if settings.metrics_open is not None:
        return settings.metrics_open
    return is_loopback(settings.host) and settings.metrics_key is None


async def _sweep(limits: ConnectionLimits) -> float:
    limits.sweep()
    return connections.SWEEP_SECONDS


async def _refresh(certificate: Certificate) -> float:
    certificate.refresh()
    return tls.REFRESH_SECONDS


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise CannotListen(f"cannot listen on {host} port {port}: {error.strerror}") from error
    listener.setblocking(False)
    return listener
