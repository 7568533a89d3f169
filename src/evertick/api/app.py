"""The API as an ASGI application: routes each request to its operation, and sends its response.

Every response has a request id, headers for browsers and a place in the metrics; every error becomes a problem.
"""

import asyncio
import functools
import re
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any, AnyStr, NamedTuple, TypeAlias

from evertick.api.bodies.memory_limits import LARGE_RESPONSE_BYTES
from evertick.api.bodies.request_body import DRAIN_BYTES, UNAUTHENTICATED_DRAIN_BYTES, Message, Receive, RequestBody
from evertick.api.messages import SECURITY_HEADERS, Client, HttpRequest, Response
from evertick.api.openapi.document import describe
from evertick.api.operations import API, NO_SITE, Operation, Site
from evertick.api.pipeline import respond
from evertick.api.problems import HttpProblem, Kind, problem_of, unavailable
from evertick.api.routes import (
    access,
    alerts,
    batch,
    connections,
    engine,
    events,
    forecast,
    jobs,
    runs,
    schedules,
    targets,
    workers,
)
from evertick.api.services import Services
from evertick.metrics.catalog import HTTP_REQUESTS, HTTP_SECONDS

ROUTES = (
    jobs.routes,
    batch.routes,
    schedules.routes,
    forecast.routes,
    runs.routes,
    runs.letter_routes,
    workers.routes,
    workers.queue_routes,
    targets.routes,
    connections.routes,
    alerts.routes,
    events.routes,
    engine.status_routes,
    access.tenant_routes,
    access.key_routes,
    access.audit_routes,
    engine.probe_routes,
)
"""In the order of the published description."""

_REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{1,64}")
_PREFIX = re.compile(r"(/[A-Za-z0-9._~-]+)*")
_CLOSE = (b"connection", b"close")
_NO_OPERATION = "none"
HEAD = "HEAD"
_REST = "name"
"""The parameter that takes all segments that are left: a job's name may hold slashes."""

Scope: TypeAlias = MutableMapping[str, Any]
"""Of ASGI."""
Send: TypeAlias = Callable[[Message], Awaitable[None]]


def operations() -> list[Operation]:
    return [operation for routes in ROUTES for operation in routes.operations]


@functools.cache
def openapi() -> bytes:
    """The published description, which takes a tenth of a second to make."""
    return describe(operations())


class Match(NamedTuple):
    """The operations at a path by their methods, and what the path says."""

    operations: Mapping[str, Operation]
    parameters: Mapping[str, str]
    path: str
    """Without empty segments."""

    def operation_of(self, method: str) -> Operation | None:
        """What answers a method. A HEAD is a GET whose body is not sent; pages have none, for some links work once."""
        found = self.operations.get("GET" if method == HEAD else method)
        return None if method == HEAD and found is not None and found.surface is not API else found

    @property
    def allow(self) -> str:
        implied = (HEAD, "OPTIONS") if self.operation_of(HEAD) else ("OPTIONS",)
        return ", ".join((*self.operations, *implied))


@dataclass(slots=True)
class _Node:
    children: dict[str, "_Node"] = field(default_factory=dict)
    parameter: str = ""
    child: "_Node | None" = None
    verbs: dict[str, "_Node"] = field(default_factory=dict)
    operations: dict[str, Operation] = field(default_factory=dict)


class Router:
    """All operations, by path and method: segment by segment, a fixed segment before a parameter.

    A parameter may be followed by a colon and a verb. It has no colon itself then.
    """

    def __init__(self, operations: Iterable[Operation]) -> None:
        self._root = _Node()
        for operation in operations:
            self._add(operation)

    def match(self, path: str) -> Match | None:
        """What is at a path. Empty segments do not count."""
        segments = [segment for segment in path.split("/") if segment]
        node, parameters = self._root, dict[str, str]()
        for place, segment in enumerate(segments):
            child = node.children.get(segment)
            if child is None:
                if node.child is None:
                    return None
                child = node.child
                if child.verbs and ":" in segment:
                    segment, _, verb = segment.partition(":")  # noqa: PLW2901 - without its verb
                    if verb not in child.verbs:
                        return None
                    parameters[node.parameter] = segment
                    node = child.verbs[verb]
                    continue
                is_rest = node.parameter == _REST
                parameters[node.parameter] = "/".join(segments[place:]) if is_rest else segment
                if is_rest:
                    node = child
                    break
            node = child
        if not node.operations:
            return None
        return Match(node.operations, parameters, "/" + "/".join(segments))

    def _add(self, operation: Operation) -> None:
        node = self._root
        for segment in filter(None, operation.path.split("/")):
            if not segment.startswith("{"):
                node = node.children.setdefault(segment, _Node())
                continue
            name, _, verb = segment.strip("{").partition("}")
            assert node.parameter in {"", name}, f"{operation.path}: the parameter is {node.parameter} elsewhere"
            node.parameter = name
            node.child = node.child or _Node()
            node = node.child if not verb else node.child.verbs.setdefault(verb.removeprefix(":"), _Node())
        assert operation.method not in node.operations, f"{operation.method} {operation.path} is declared twice"
        node.operations[operation.method] = operation


class AsgiApp:
    """Answers the requests of one process with these services."""

    def __init__(self, services: Services, site: Site = NO_SITE, path_prefix: str = "") -> None:
        self._services = services
        self._site = site
        self._path_prefix = path_prefix
        beside = [operation for routes in site.routes for operation in routes.operations]
        self._router = Router([*operations(), *beside])
        services.openapi = openapi()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        began = time.perf_counter()
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in reversed(scope["headers"])}
        client = _client(scope, headers, self._path_prefix)
        request = HttpRequest(
            services=self._services,
            request_id=_request_id(headers.get("x-request-id")),
            # Only the configured prefix: a client that could name another would pass the rules of a proxy for paths.
            path=_below(scope["path"], self._path_prefix),
            raw_path=_below(scope["raw_path"], self._path_prefix.encode()),
            path_parameters={},
            query_string=scope["query_string"],
            headers=headers,
            body=RequestBody(scope["headers"], receive),
            method=scope["method"],
            client=client,
        )
        operation, response = await self._respond(scope["method"], request)
        HTTP_REQUESTS.add(1, operation, str(response.status))
        HTTP_SECONDS.of(operation).observe(time.perf_counter() - began)
        try:
            await self._send(response, request, send)
        finally:
            if response.on_sent is not None:
                response.on_sent()
            if response.stream is not None:
                response.stream.close()

    async def _respond(self, method: str, request: HttpRequest) -> tuple[str, Response]:
        """The response, and the name of the operation that it comes from."""
        # The database stores no NUL, so nothing has one in its name, and a look for it would be an error there.
        found = None if "\0" in request.path else self._router.match(request.path)
        if found is None:
            problem = HttpProblem(Kind.NOT_FOUND, f"there is nothing at {request.path}")
            is_browser = "text/html" in request.headers.get("accept", "") and not request.path.startswith("/api")
            surface = self._site.surface if is_browser else API
            return _NO_OPERATION, surface.show(problem, request)
        operation = found.operation_of(method)
        if operation is None and method == "OPTIONS":
            return _NO_OPERATION, Response(204, headers={"Allow": found.allow})
        if operation is None:
            problem = HttpProblem(Kind.NOT_ALLOWED, f"{method} is not allowed here", headers={"Allow": found.allow})
            surface = next(iter(found.operations.values())).surface
            return _NO_OPERATION, surface.show(problem, request)
        request.path, request.path_parameters = found.path, found.parameters
        try:
            return operation.name, await respond(operation, request)
        except Exception as error:  # noqa: BLE001 - the edge: every error becomes a response
            return operation.name, operation.surface.show(problem_of(error, request.request_id), request)
        except asyncio.CancelledError:
            if not self._services.polls.is_stopping.is_set():
                raise
            # The time to end in order is over.
            return operation.name, operation.surface.show(unavailable("this server stops"), request)

    async def _send(self, response: Response, request: HttpRequest, send: Send) -> None:
        """Send the response. The rest of a body that was not read is dropped before the connection is closed.

        The last part of a large response is sent when the client has read the others: until then its memory is held.
        """
        body = request.body
        closing = [_CLOSE] if body.is_unread else []
        headers = [*_encoded_headers(response), (b"x-request-id", request.request_id.encode())]
        await send({"type": "http.response.start", "status": response.status, "headers": [*headers, *closing]})
        if response.stream is not None and request.method != HEAD:
            await _send_parts(response.stream.parts(), request, send)
        rest = response.body
        is_early = body.is_unread and not self._services.polls.is_stopping.is_set()
        if is_early or len(rest) > LARGE_RESPONSE_BYTES:
            await send({"type": "http.response.body", "body": rest, "more_body": True})
            rest = b""
            if is_early:
                await body.drain(DRAIN_BYTES if request.is_authenticated else UNAUTHENTICATED_DRAIN_BYTES)
        await send({"type": "http.response.body", "body": rest, "more_body": False})


async def _send_parts(parts: AsyncIterator[bytes], request: HttpRequest, send: Send) -> None:
    """Send one part after the other, until there are no more, or the client has disconnected.

    An error ends the response. It is too late for a problem, and a client goes on with another request.
    """

    async def send_all() -> None:
        async for part in parts:
            await send({"type": "http.response.body", "body": part, "more_body": True})

    try:
        await request.cancel_on_disconnect(send_all())
    except Exception as error:  # noqa: BLE001 - the edge: whatever it is, the response ends
        problem_of(error, request.request_id)


def _client(scope: Scope, headers: Mapping[str, str], path_prefix: str) -> Client:
    """What a trusted proxy says about its client, else what the connection and the settings say."""
    named = headers if scope.get("is_proxy") else {}
    prefix = named.get("x-forwarded-prefix", path_prefix).rstrip("/")
    return Client(
        scope.get("origin", ""),
        prefix if _PREFIX.fullmatch(prefix) else path_prefix,
        (named.get("x-forwarded-proto") or scope["scheme"]) == "https",
    )


def _below(path: AnyStr, prefix: AnyStr) -> AnyStr:
    """The path without the prefix, which some proxies leave there and others remove."""
    rest = path.removeprefix(prefix)
    return rest if len(rest) < len(path) and rest[:1] in ("/", b"/") else path


def _encoded_headers(response: Response) -> Iterable[tuple[bytes, bytes]]:
    own = {name.lower(): value for name, value in response.headers.items()}
    for name, value in {**SECURITY_HEADERS, **own}.items():
        for line in value.split("\n"):  # a response may set several cookies
            yield name.encode("latin-1"), line.encode("latin-1")
    if response.status != 204:
        yield b"content-type", response.media_type.encode("latin-1")
        if response.stream is None:
            yield b"content-length", str(len(response.body)).encode()


def _request_id(proposed: str | None) -> str:
    """The client's own, if it is harmless; otherwise a new one."""
    return proposed if proposed is not None and _REQUEST_ID.fullmatch(proposed) else secrets.token_hex(8)
