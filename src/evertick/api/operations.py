"""Operations: what the API can do, each declared once with all that routing, access, documentation and audit need.

A handler takes the call, then what it reads: `query` and `body`, each of the shape that its annotation says, and the
parameters of its path by their names.
"""

import asyncio
import inspect
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar

import msgspec

from evertick.api.answers import Answer, expected_versions
from evertick.api.body_limits import Reservation
from evertick.api.problems import ClientDisconnected, Kind
from evertick.api.reading import JSON, IncomingBody, check_media_type, decode, read_document
from evertick.api.services import Services
from evertick.domain.access import KeyRole
from evertick.domain.admission import Request
from evertick.usecases.context import Tenant
from evertick.usecases.idempotency import Asked
from evertick.usecases.keys import Caller

PREFIX = "/api/v1"
_T = TypeVar("_T")
_PARAMETER = re.compile(r"\{(\w+)\}")


@dataclass(slots=True)
class Visit:
    """One request, of whomever it is. `gone` returns when the client has hung up. `is_known`: its key is valid.

    `release` frees the memory of its answer, once that is sent.
    """

    services: Services
    request_id: str
    path: str
    raw_path: bytes
    headers: Mapping[str, str]
    gone: Callable[[], Awaitable[None]]
    is_known: bool = field(default=False, kw_only=True)
    release: Callable[[], None] | None = field(default=None, kw_only=True)

    async def while_waited_for(self, work: Awaitable[_T]) -> _T:
        """Do work that only matters to the client: it is cancelled when the client hangs up."""
        doing, gone = asyncio.ensure_future(work), asyncio.ensure_future(self.gone())
        try:
            await asyncio.wait({doing, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not doing.done():
                raise ClientDisconnected
            return doing.result()
        finally:
            doing.cancel()
            gone.cancel()


@dataclass(slots=True)
class Call(Visit):
    """A request with a key. `tenant` acts for the caller; in a change, all in one transaction.

    `reservation` is the memory that its body holds. `asked` is by what the request is known when it comes again, if it
    may. `afterwards` follows the commit, `when_undone` follows each try that is not committed.
    """

    caller: Caller
    tenant: Tenant
    reservation: Reservation
    asked: Asked | None = None
    afterwards: list[Callable[[], None]] = field(default_factory=list)
    when_undone: list[Callable[[], None]] = field(default_factory=list)

    @property
    def expected_versions(self) -> frozenset[int] | None:
        return expected_versions(self.headers.get("if-match"))

    @property
    def sees_only(self) -> int | None:
        """The one tenant that the caller may look at; None: all of them."""
        return None if self.caller.tenant.is_host else self.caller.tenant.tenant_id


Handler: TypeAlias = Callable[..., Awaitable[Answer]]
Reader: TypeAlias = Callable[[IncomingBody], Awaitable[Any]]
"""Gives a body's text, or what it was cut into."""


@dataclass(frozen=True, slots=True)
class Shown:
    """How an answer is documented: a type that msgspec knows or the name of a schema, headers, links to go on with.

    `also` are other shapes of the same, by their media types.
    """

    shape: Any
    text: str
    headers: tuple[str, ...] = ()
    links: Mapping[str, tuple[str, Mapping[str, str]]] = field(default_factory=dict)
    media_types: tuple[str, ...] = (JSON,)
    also: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Body:
    """How an operation's body is read, decoded once the request is admitted, and documented, `also` as above."""

    shape: Any
    read: Reader
    is_required: bool
    decode: Callable[[Any], Any] = lambda text: text
    media_types: tuple[str, ...] = (JSON,)
    also: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One thing that the API can do. `cost` is what it draws from the quotas, given the body as it was read.

    `replaces` tells whether it would change a job that is there rather than create one. `prepare` makes of an admitted
    body what the handler gets: work that takes long, before a transaction is opened. A change is one transaction, with
    its entry in the audit log. A poll has transactions of its own, one for each try. What is shared goes into one
    transaction with other requests of its kind, which its handler sees to. What is computed needs a connection only
    before and after that, and its handler takes the slots for it.
    """

    method: str
    path: str
    handler: Handler
    role: KeyRole | None
    tag: str
    answers: Mapping[int, Shown]
    problems: tuple[Kind, ...]
    headers: tuple[str, ...]
    query: type[Any] | None
    body: Body | None
    is_change: bool
    is_poll: bool
    is_shared: bool
    is_computed: bool
    holds_secret: bool
    cost: Callable[[Any], Request] | None
    replaces: Callable[[Call], Awaitable[bool]] | None
    prepare: Callable[[Call, Any], Awaitable[Any]] | None

    @property
    def name(self) -> str:
        return self.handler.__name__

    @property
    def is_repeatable(self) -> bool:
        """Whether an Idempotency-Key is honoured."""
        return self.method == "POST"

    @property
    def parameters(self) -> list[str]:
        return _PARAMETER.findall(self.path)

    @property
    def texts(self) -> tuple[str, str]:
        """The summary and the description: a handler's docstring."""
        summary, _, text = inspect.cleandoc(self.handler.__doc__ or "").partition("\n")
        return summary.rstrip("."), text.strip()


_H = TypeVar("_H", bound=Handler)


class Section:
    """The operations of one subject, in the order in which they are declared."""

    def __init__(self, tag: str, prefix: str = PREFIX) -> None:
        self.tag = tag
        self.prefix = prefix
        self.operations: list[Operation] = []

    def operation(  # noqa: PLR0913 - all that there is to say about one, by name
        self,
        method: str,
        path: str,
        role: KeyRole | None,
        *,
        answers: Mapping[int, Shown],
        problems: tuple[Kind, ...] = (),
        headers: tuple[str, ...] = (),
        body: Body | str | None = None,
        is_change: bool = True,
        is_poll: bool = False,
        is_shared: bool = False,
        is_computed: bool = False,
        holds_secret: bool = False,
        cost: Callable[[Any], Request] | None = None,
        replaces: Callable[[Call], Awaitable[bool]] | None = None,
        prepare: Callable[[Call, Any], Awaitable[Any]] | None = None,
    ) -> Callable[[_H], _H]:
        """Declare an operation. `body` may name the schema of one, where its annotation does not say enough."""

        def declare(handler: _H) -> _H:
            hints = {name: each.annotation for name, each in inspect.signature(handler).parameters.items()}
            shown = body if isinstance(body, Body) else _body_of(body, hints.get("body"))
            self.operations.append(
                Operation(
                    method=method,
                    path=self.prefix + path,
                    handler=handler,
                    role=role,
                    tag=self.tag,
                    answers=answers,
                    problems=problems,
                    headers=headers,
                    query=hints.get("query"),
                    body=shown,
                    is_change=is_change and method != "GET",
                    is_poll=is_poll,
                    is_shared=is_shared,
                    is_computed=is_computed,
                    holds_secret=holds_secret,
                    cost=cost,
                    replaces=replaces,
                    prepare=prepare,
                )
            )
            return handler

        return declare


def _body_of(name: str | None, shape: Any) -> Body | None:
    if shape is None:
        return None
    if shape is object:
        return Body(name, _read_required, is_required=True, decode=decode)

    def decode_shape(data: bytes) -> Any:
        return read_document(data, shape)

    is_required = any(each.required for each in msgspec.structs.fields(shape))
    return Body(name or shape, _read, is_required, decode=decode_shape)


async def _read_required(body: IncomingBody) -> bytes:
    check_media_type(body.headers, JSON)
    return await body.document()


async def _read(body: IncomingBody) -> bytes:
    data = await body.document()
    if data:
        check_media_type(body.headers, JSON)
    return data
