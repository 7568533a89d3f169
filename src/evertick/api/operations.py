"""Operations: what the API can do, each declared once with all that routing, access, documentation and audit need.

A handler takes the request, then what is parsed from it: `query` and `body`, each of the type that its annotation says,
and the parameters of its path by their names. Its docstring is its documentation.
"""

import inspect
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, ClassVar, NamedTuple, TypeAlias, TypeVar

import msgspec

from evertick.api.bodies.request_body import JSON, IncomingBody, check_media_type
from evertick.api.decoding import decode, decode_document
from evertick.api.messages import PREFIX, AuthenticatedRequest, HttpRequest, Response, authenticate, problem_response
from evertick.api.problems import HttpProblem, Kind
from evertick.domain.access import KeyRole
from evertick.domain.admission import AdmissionRequest
from evertick.usecases.tenants.keys import Caller

_PARAMETER = re.compile(r"\{(\w+)\}")
_IDS = {"job_id", "run_id", "replay_id", "smear_id", "key_id", "tenant_id", "host", "connection"}

Handler: TypeAlias = Callable[..., Awaitable[Response]]
Cost: TypeAlias = AdmissionRequest | Callable[[AuthenticatedRequest, Any], Awaitable[AdmissionRequest]]
"""What a request draws from its tenant's quotas: the same always, or by its body as far as that is decoded."""


class HandlerMode(Enum):
    """How the pipeline runs a handler: in which transaction, on which connections."""

    READ = auto()  # without a transaction
    LATE_READ = auto()  # as READ, and on a standby where there is one: the answer may be seconds old
    CHANGE = auto()  # in one transaction, with its entry in the audit log
    SHARED_CHANGE = auto()  # as CHANGE, but the handler shares the transaction with other requests of its kind
    REPORT = auto()  # of a worker: without a transaction, on connections for reports
    POLL = auto()  # the handler opens a transaction for each try, on connections for leases
    COMPUTATION = auto()  # the handler takes a slot for a connection before and after it computes

    @property
    def is_change(self) -> bool:
        return self in {HandlerMode.CHANGE, HandlerMode.SHARED_CHANGE}

    @property
    def has_own_transactions(self) -> bool:
        """Whether the handler opens its transactions itself."""
        return self in {HandlerMode.SHARED_CHANGE, HandlerMode.POLL, HandlerMode.COMPUTATION}


@dataclass(frozen=True, slots=True)
class Surface:
    """How operations know their callers, and how they show a problem. `ignores_blanks`: forms send empty parameters."""

    authenticate: Callable[[HttpRequest], Awaitable[Caller]]
    show: Callable[[HttpProblem, HttpRequest], Response]
    ignores_blanks: bool = False


API = Surface(authenticate, problem_response)


@dataclass(frozen=True, slots=True)
class ResponseSpec:
    """How a response is documented: a type that msgspec knows or the name of a schema, headers, links to go on with.

    `also` has the types of the same in other media types. A response that `holds_secret` is kept sealed.
    """

    shape: Any
    text: str
    headers: tuple[str, ...] = ()
    links: Mapping[str, tuple[str, Mapping[str, str]]] = field(default_factory=dict)
    media_type: str = JSON
    also: Mapping[str, str] = field(default_factory=dict)
    holds_secret: bool = False
    status: int = 200


@dataclass(frozen=True, slots=True)
class BodySpec:
    """How a body is read within its limits, decoded once the request may cost more, and documented.

    `prepare` makes of the body of an admitted request what the handler gets: work that takes long, before a transaction
    is opened.
    """

    shape: Any
    read: Callable[[IncomingBody], Awaitable[Any]]
    is_required: bool
    decode: Callable[[Any], Any] = lambda text: text
    prepare: Callable[[AuthenticatedRequest, Any], Awaitable[Any]] | None = None
    media_type: ClassVar[str] = JSON
    also: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One thing that the API can do. Without a role it needs no key."""

    method: str
    path: str
    handler: Handler
    role: KeyRole | None
    tag: str
    responses: Mapping[int, ResponseSpec]
    problems: tuple[Kind, ...]
    headers: tuple[str, ...]
    query: type[Any] | None
    body: BodySpec | None
    mode: HandlerMode
    cost: Cost | None
    surface: Surface = API

    @property
    def name(self) -> str:
        return self.handler.__name__

    @property
    def is_repeatable(self) -> bool:
        """Whether an Idempotency-Key is honoured."""
        return self.method == "POST" and self.surface is API

    @property
    def holds_secret(self) -> bool:
        return any(response.holds_secret for response in self.responses.values())

    @property
    def parameters(self) -> list[str]:
        return _PARAMETER.findall(self.path)

    @property
    def texts(self) -> tuple[str, str]:
        """The summary and the description: a handler's docstring."""
        summary, _, text = inspect.cleandoc(self.handler.__doc__ or "").partition("\n")
        return summary.rstrip("."), text.strip()


_H = TypeVar("_H", bound=Handler)


class Routes:
    """The operations of one resource, in the order in which they are declared."""

    def __init__(self, tag: str, prefix: str = PREFIX, surface: Surface = API) -> None:
        self.tag = tag
        self.prefix = prefix
        self.surface = surface
        self.operations: list[Operation] = []

    def operation(  # noqa: PLR0913 - the first four for every operation, the others for a few, by name
        self,
        method: str,
        path: str,
        role: KeyRole | None,
        *responses: ResponseSpec,
        problems: tuple[Kind, ...] = (),
        headers: tuple[str, ...] = (),
        body: BodySpec | str | None = None,
        mode: HandlerMode | None = None,
        cost: Cost | None = None,
    ) -> Callable[[_H], _H]:
        """Declare an operation. `problems` are those that neither its path nor the pipeline implies.

        `body` may name the schema of one, where its annotation does not say enough.
        """

        def declare(handler: _H) -> _H:
            types = {name: each.annotation for name, each in inspect.signature(handler).parameters.items()}
            self.operations.append(
                Operation(
                    method=method,
                    path=self.prefix + path,
                    handler=handler,
                    role=role,
                    tag=self.tag,
                    responses={spec.status: spec for spec in responses},
                    problems=_problems_of(path, problems),
                    headers=headers,
                    query=types.get("query"),
                    body=body if isinstance(body, BodySpec) else _body_spec(body, types.get("body")),
                    mode=mode or (HandlerMode.READ if method == "GET" else HandlerMode.CHANGE),
                    cost=cost,
                    surface=self.surface,
                )
            )
            return handler

        return declare


class Site(NamedTuple):
    """Operations beside the API. Its surface also answers for paths outside of the API that nothing has."""

    routes: tuple[Routes, ...]
    surface: Surface


NO_SITE = Site((), API)


def _problems_of(path: str, others: tuple[Kind, ...]) -> tuple[Kind, ...]:
    """An id in the path may name nothing."""
    return (Kind.NOT_FOUND, *others) if _IDS & set(_PARAMETER.findall(path)) else others


def _body_spec(name: str | None, shape: Any) -> BodySpec | None:
    if shape is None:
        return None
    if shape is object:
        return BodySpec(name, _read_required, is_required=True, decode=decode)

    def decode_shape(data: bytes) -> Any:
        return decode_document(data, shape)

    is_required = any(each.required for each in msgspec.structs.fields(shape))
    return BodySpec(name or shape, _read, is_required, decode=decode_shape)


async def _read_required(body: IncomingBody) -> bytes:
    check_media_type(body.headers, JSON)
    return await body.document()


async def _read(body: IncomingBody) -> bytes:
    data = await body.document()
    if data:
        check_media_type(body.headers, JSON)
    return data
