"""The API as an ASGI application: Litestar routes each operation, and every error leaves as a problem."""

import asyncio
import re
import secrets
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

from litestar import HttpMethod, Litestar, Request, Response, route
from litestar.enums import ScopeType
from litestar.exceptions import HTTPException, MethodNotAllowedException, NotFoundException
from litestar.handlers import HTTPRouteHandler
from litestar.response.base import ASGIResponse
from litestar.types import ASGIApp, Message, Receive, Scope, Send

from evertick.api.bodies.request_body import RequestBody
from evertick.api.bodies.unread_responses import LARGE_BYTES
from evertick.api.openapi import describe
from evertick.api.operations import Operation, Visit
from evertick.api.pipeline import answer
from evertick.api.problems import MEDIA_TYPE, Kind, Problem, problem_of, stopping
from evertick.api.responses import EVERY_ANSWER, Answer
from evertick.api.routes import (
    audit,
    batch,
    cluster,
    dead_letters,
    jobs,
    keys,
    probes,
    runs,
    schedules,
    tenants,
    workers,
)
from evertick.api.services import Services

SECTIONS = (jobs, batch, schedules, runs, dead_letters, workers, cluster, tenants, keys, audit, probes)

_REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{1,64}")
_CLOSE = (b"connection", b"close")
_ID = "evertick_request_id"
_NAME = "evertick_operation"
_BODY = "evertick_body"
_RELEASE = "evertick_release"


def operations() -> list[Operation]:
    return [operation for module in SECTIONS for operation in module.section.operations]


def create_app(services: Services) -> ASGIApp:
    """The application; requests are answered with these services."""
    services.openapi = describe(operations())
    by_path: dict[str, dict[str, Operation]] = {}
    for operation in operations():
        by_path.setdefault(operation.path, {})[operation.method] = operation
    handlers = [_route(path, methods, services) for path, methods in by_path.items()]
    app = Litestar(
        handlers,
        openapi_config=None,
        exception_handlers={Exception: _unrouted},
        logging_config=None,
        request_max_body_size=None,  # each operation has its own limit
        include_in_schema=False,
    )
    return _Front(app, services)


def _route(template: str, methods: Mapping[str, Operation], services: Services) -> HTTPRouteHandler:
    """One path with all its methods, so that Litestar can tell in `Allow` which there are."""

    async def handle(request: Request[Any, Any, Any]) -> ASGIResponse:
        operation, scope = methods[request.method], request.scope
        body: RequestBody = scope[_BODY]  # type: ignore[literal-required]
        scope[_NAME] = operation.name  # type: ignore[literal-required]
        visit = Visit(
            services=services,
            request_id=scope[_ID],  # type: ignore[literal-required]
            path=scope["path"],
            raw_path=scope["raw_path"],
            headers=request.headers,
            gone=lambda: _gone(request.receive),
        )
        try:
            answered = await answer(operation, visit, scope["path_params"], scope["query_string"], body.parts())
        except Exception as error:  # noqa: BLE001 - the edge: whatever it is becomes an answer
            answered = _told(problem_of(error, visit.request_id), visit.path, visit.request_id)
        except asyncio.CancelledError:
            if not services.polls.is_stopping.is_set():
                raise
            answered = _told(stopping(), visit.path, visit.request_id)  # its time to end in order is over
        body.is_known = visit.is_known
        scope[_RELEASE] = visit.release  # type: ignore[literal-required]
        return _response(answered)

    path = re.sub(r"\{(\w+)\}", _parameter, template)
    # The answer has its own status. Litestar wants to know one, and assumes that a DELETE has nothing to say.
    return route(path, http_method=[HttpMethod(method) for method in methods], status_code=200)(handle)


def _parameter(match: re.Match[str]) -> str:
    # A job's name may hold slashes, even encoded ones.
    return f"{{{match[1]}:path}}" if match[1] == "name" else f"{{{match[1]}:str}}"


async def _gone(receive: Receive) -> None:
    """Return when the client has hung up. The body has been read: nothing else can come."""
    while (await receive())["type"] != "http.disconnect":
        pass


def _unrouted(request: Request[Any, Any, Any], error: Exception) -> Response[bytes]:
    """What never came to an operation: no such path or method."""
    path, request_id = request.scope["path"], str(request.scope[_ID])  # type: ignore[literal-required]
    match error:
        case NotFoundException():
            problem = Problem(Kind.NOT_FOUND, f"there is nothing at {path}")
        case MethodNotAllowedException():
            problem = Problem(Kind.NOT_ALLOWED, f"{request.method} is not allowed here", headers=error.headers)
        case HTTPException() if error.status_code < 500:
            problem = Problem(Kind.MALFORMED, error.detail)
        case _:
            problem = problem_of(error, request_id)
    told = _told(problem, path, request_id)
    return Response(told.body, status_code=told.status, headers=told.headers, media_type=told.media_type)


def _told(problem: Problem, path: str, request_id: str) -> Answer:
    body = problem.body(path, request_id)
    return Answer(problem.kind.status, body, problem.headers, media_type=MEDIA_TYPE)


def _response(answered: Answer) -> ASGIResponse:
    return ASGIResponse(
        body=answered.body,
        status_code=answered.status,
        headers=answered.headers,
        media_type=answered.media_type,
    )


class _Front:
    """What every answer gets, whoever makes it: a request id, headers that browsers heed, a place in the metrics."""

    def __init__(self, app: ASGIApp, services: Services) -> None:
        self._app = app
        self._services = services

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != ScopeType.HTTP:
            await self._app(scope, receive, send)
            return
        request_id = _request_id(scope["headers"])
        scope[_ID] = request_id  # type: ignore[literal-required]
        added = [(b"x-request-id", request_id.encode()), *EVERY_ANSWER]
        began = time.perf_counter()
        body = RequestBody(scope, receive)
        scope[_BODY] = body  # type: ignore[literal-required]

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                closing = [_CLOSE] if body.is_unread else []
                message["headers"] = [*message["headers"], *added, *closing]
                name = str(scope.get(_NAME, "none"))
                self._services.metrics.count(name, message["status"], time.perf_counter() - began)
            await send(message)

        try:
            await self._app(scope, body.receive, lambda message: self._send(message, body, send_with_headers))
        finally:
            if (release := scope.get(_RELEASE)) is not None:
                cast("Callable[[], None]", release)()

    async def _send(self, message: Message, body: RequestBody, send: Send) -> None:
        """Send; the last part of an early answer closes the connection, so the rest of the body is read before.

        The last part of a large answer is sent when the client has read the others: until then its memory is held.
        """
        if message["type"] == "http.response.body" and not message["more_body"]:
            is_early = body.is_unread and not self._services.polls.is_stopping.is_set()
            if is_early or len(message["body"]) > LARGE_BYTES:
                await send({"type": "http.response.body", "body": message["body"], "more_body": True})
                if is_early:
                    await body.drain()
                message = {"type": "http.response.body", "body": b"", "more_body": False}
        await send(message)


def _request_id(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """The caller's, if it is harmless; otherwise a new one."""
    for name, value in headers:
        if name == b"x-request-id" and _REQUEST_ID.fullmatch(text := value.decode("latin-1")):
            return text
    return secrets.token_hex(8)
