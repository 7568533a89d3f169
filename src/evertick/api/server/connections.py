"""One client's connection: what it may send before a request is accepted, and how long each step may take.

Uvicorn parses and answers, and bounds neither heads nor time. This class counts bytes before the parser keeps them, and
is asked once a second (a sweep) whether the client is too slow: that costs a request no timers. What breaks a limit is
answered with a problem where a response is possible, and then the connection is closed. Decision 14 has the reasons.
"""

import asyncio
import logging
import secrets
from collections.abc import Callable, Hashable
from functools import partial
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from evertick.api.messages import SECURITY_HEADERS
from evertick.api.problems import MEDIA_TYPE, HttpProblem, Kind, unavailable
from evertick.api.server.connection_limits import ConnectionLimits, LimitedConnection, RequestQueue, forwarded_origin

logger = logging.getLogger("evertick.api")

HEAD_BYTES = 32_768
"""Of the request line and all headers; also of trailers and chunk extensions between two bytes of a body."""
MAX_HEADERS = 100
URL_BYTES = 8_192
MAX_PIPELINED = 8
"""Requests that wait on a connection while one is answered. One more, and it is closed after those responses."""

ALWAYS_ANSWERED = "/livez"
"""Also when there are too many connections: an orchestrator may restart a process that does not answer."""

SWEEP_SECONDS = 1.0
HEAD_SECONDS = 10.0
"""From the first byte of a head to its last; also from the connection to the first byte."""
KEEP_ALIVE_SECONDS = 65
"""Without a request. Longer than the 60 s for which proxies keep theirs, so that none sends on one that is closed."""
STALL_SECONDS = 10.0
"""Without a byte of a body that is being read, or of a response that is being sent."""
GRACE_SECONDS = 30.0
MIN_BYTES_PER_SECOND = 65_536
"""A body or a response may take GRACE_SECONDS, and a second more for each of these bytes."""
LINGER_SECONDS = 2.0
"""After a refusal, for the client to read it: closing a connection with unread bytes resets it, response and all."""


class _TransferRate:
    """How fast a body arrives or a response is read. Checked in each sweep in which the server waits for the client.

    Sweeps are counted, not time: a pause of this process does not count against the client.
    """

    __slots__ = ("_done", "_seconds", "_stalled")

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        self._done = 0
        self._seconds = self._stalled = 0.0

    def is_too_slow(self, done: int) -> bool:
        self._seconds += SWEEP_SECONDS
        self._stalled = 0.0 if done > self._done else self._stalled + SWEEP_SECONDS
        self._done = done
        return self._stalled >= STALL_SECONDS or self._seconds > GRACE_SECONDS + done / MIN_BYTES_PER_SECOND


class HttpConnection(HttpToolsProtocol):
    """Reads requests within limits. `tenant_of` names the tenant of a key in a header, if it is known already.

    `handshake` is what was counted in its place until now, over TLS.
    """

    def __init__(
        self,
        *arguments: Any,
        limits: ConnectionLimits,
        requests: RequestQueue,
        tenant_of: Callable[[str], int | None],
        handshake: LimitedConnection | None = None,
        **named: Any,
    ) -> None:
        super().__init__(*arguments, **named)
        self._handshake = handshake
        self.origin = ""
        self._is_proxy = False
        self._limits = limits
        self._requests = requests
        self._tenant_of = tenant_of
        self._running: Any = None  # the request that is being answered; `cycle` is the newest
        self._is_in_body = False
        self._is_upgrade = False
        self._is_turned_away = False
        self._drops_input = False
        self._is_lingering = False
        self._head_bytes = 0
        self._waited = 0.0
        self._body_bytes = 0
        self._bytes_without_body = 0
        self._trailers = 0
        self._reading = _TransferRate()
        self._writing = _TransferRate()
        self._sent = self._unsent = 0

    # What the transport calls.

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        host = self.client[0] if self.client else None
        self.origin = self._limits.origin_of(host)
        self._is_proxy = self._limits.is_proxy(host)
        if self._handshake is not None:
            self._limits.remove(self._handshake)
        self._is_turned_away = not self._limits.admit(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._limits.remove(self)
        super().connection_lost(exc)
        self._unset_keepalive_if_required()
        if self._running is not None and not self._running.response_complete:
            # Uvicorn tells only the newest request that the client has disconnected.
            self._running.disconnected = True
            self._running.message_event.set()

    def data_received(self, data: bytes) -> None:
        self._unset_keepalive_if_required()
        rest = memoryview(data)
        while rest and not self._drops_input:
            if self._is_in_body:
                size = self._feed_body(rest[:HEAD_BYTES])
            else:
                size = self._feed_head(rest[: HEAD_BYTES - self._head_bytes])
            rest = rest[size:]

    def _feed_head(self, data: memoryview) -> int:
        if not self._head_bytes:
            self._waited = 0.0
        self._head_bytes += len(data)
        self._feed(data)
        if not self._is_in_body and self._head_bytes >= HEAD_BYTES:
            self._refuse(HttpProblem(Kind.HEAD_TOO_LARGE, f"a request's head has at most {HEAD_BYTES} bytes"))
        return len(data)

    def _feed_body(self, data: memoryview) -> int:
        self._bytes_without_body += len(data)
        self._feed(data)
        if self._is_in_body and self._bytes_without_body > HEAD_BYTES:
            self._refuse(
                HttpProblem(Kind.HEAD_TOO_LARGE, f"trailers and chunk extensions have at most {HEAD_BYTES} bytes")
            )
        return len(data)

    def _feed(self, data: memoryview | bytes) -> None:
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._feed(self._head_without_upgrade())
            if rest := data[upgrade.args[0] :]:
                self._feed(rest)
        except httptools.HttpParserCallbackError as error:
            cause = error.__context__
            self._refuse(
                cause if isinstance(cause, HttpProblem) else HttpProblem(Kind.MALFORMED, "the URL cannot be read")
            )
        except httptools.HttpParserError as error:
            self._refuse(HttpProblem(Kind.MALFORMED, f"the request cannot be read: {error}"))

    def _head_without_upgrade(self) -> bytes:
        """The head once more, for a new parser: one that was asked for an upgrade takes the body for another protocol.

        A server may ignore an upgrade. Some clients (Java's) ask for one with every first request.
        """
        self._is_upgrade = False
        line = b"%b %b HTTP/%b\r\n" % (self.parser.get_method(), self.url, self.parser.get_http_version().encode())
        headers = [b"%b: %b\r\n" % (name, value) for name, value in self.headers if name != b"upgrade"]
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as Uvicorn has it
        return b"".join([line, *headers, b"\r\n"])

    # What the parser calls. What is raised here arrives at `_feed`.

    def on_url(self, url: bytes) -> None:
        self.url += url
        if len(self.url) > URL_BYTES:
            raise HttpProblem(Kind.URL_TOO_LONG, f"a URL has at most {URL_BYTES} bytes")

    def on_header(self, name: bytes, value: bytes) -> None:
        count = len(self.headers)
        if self._is_in_body:
            count = self._trailers = self._trailers + 1
        if count >= MAX_HEADERS:
            raise HttpProblem(Kind.HEAD_TOO_LARGE, f"a request has at most {MAX_HEADERS} headers")
        if not self._is_in_body:  # a trailer is not taken for a header
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if self.parser.should_upgrade():
            if self.parser.get_method() == b"CONNECT":
                raise HttpProblem(Kind.MALFORMED, "this server is no proxy")
            self._is_upgrade = True
            return
        if len(self.pipeline) >= MAX_PIPELINED:
            raise HttpProblem(Kind.OVER_QUOTA, f"at most {MAX_PIPELINED} requests wait on a connection")
        super().on_headers_complete()
        self._is_in_body = True
        self._body_bytes = self._bytes_without_body = self._trailers = 0
        self._reading.restart()
        self._limits.work(self)

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        self._bytes_without_body = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        if not self._is_upgrade:
            self._is_in_body = False
            self._head_bytes = 0
            super().on_message_complete()

    # What begins and ends a response.

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        if self._is_turned_away:
            if self.scope["path"] != ALWAYS_ANSWERED:
                self._refuse(unavailable("too many clients are connected"))
                return
            cycle.keep_alive = False
        self._running = cycle
        self._requests.start(partial(self._begin, cycle, app), partial(self._client_of, cycle))

    def _begin(self, cycle: Any, app: Any) -> None:
        if not cycle.disconnected:  # its client may have disconnected while it waited
            cycle.scope["origin"], cycle.scope["is_proxy"] = self._origin_of(cycle), self._is_proxy
            super()._start_asgi_task(cycle, app)

    def _client_of(self, cycle: Any) -> Hashable:
        """Whose requests it waits behind: its tenant's; if the tenant is not known, its address's.

        Requests with an unknown key do not delay those of the same address that need none.
        """
        header = next((value for name, value in cycle.scope["headers"] if name == b"authorization"), None)
        if header is None:
            return self._origin_of(cycle)
        tenant_id = self._tenant_of(header.decode("latin-1"))
        return (self._origin_of(cycle), "unknown key") if tenant_id is None else tenant_id

    def _origin_of(self, cycle: Any) -> str:
        """The client's address, or the one that a trusted proxy names."""
        if not self._is_proxy:
            return self.origin
        named = [value.decode("latin-1") for name, value in cycle.scope["headers"] if name == b"x-forwarded-for"]
        return forwarded_origin(",".join(named), self._limits.proxies) or self.origin

    def on_response_complete(self) -> None:
        is_last = not self.pipeline
        super().on_response_complete()
        if is_last:
            self._waited = 0.0
            self._limits.wait(self)

    # What the limits call.

    def abort(self) -> None:
        self.transport.abort()

    def sweep(self) -> None:
        if self._is_turned_away or self._is_lingering:
            self._sweep_ending()
        elif self._is_response_unread():
            self._limits.refused("slow-reader")
            self.abort()
        elif self.transport.is_closing():
            if not self._unsent:
                self._sweep_ending()  # over TLS a client may leave the last word of the server without an answer
        elif self._running is None or self.cycle.response_complete:
            self._sweep_head()
        elif self._is_in_body:
            self._sweep_body()

    def _sweep_ending(self) -> None:
        self._waited += SWEEP_SECONDS
        if self._waited >= LINGER_SECONDS:
            self.abort()

    def _is_response_unread(self) -> bool:
        """Whether the client reads its response too slowly."""
        unsent = self.transport.get_write_buffer_size()
        if not unsent:
            self._sent = self._unsent = 0
            self._writing.restart()
            return False
        self._sent += max(0, self._unsent - unsent)
        self._unsent = unsent
        return self._writing.is_too_slow(self._sent)

    def _sweep_head(self) -> None:
        if not (self._head_bytes or self._running is None):
            return  # between two requests Uvicorn's own timer counts
        self._waited += SWEEP_SECONDS
        if self._waited < HEAD_SECONDS:
            return
        if self._head_bytes:
            self._refuse(HttpProblem(Kind.TOO_SLOW, f"a request's head has to arrive within {HEAD_SECONDS:g} seconds"))
        else:
            self.transport.close()

    def _sweep_body(self) -> None:
        if self.cycle.response_started:
            self._limits.wait(self)  # answered early: the rest of its body is only dropped
        elif self.flow.read_paused or self.cycle.waiting_for_100_continue:
            self._reading.restart()  # the client waits for the server
        elif self._reading.is_too_slow(self._body_bytes):
            self._refuse(HttpProblem(Kind.TOO_SLOW, "the request's body arrives too slowly"))

    def _refuse(self, problem: HttpProblem) -> None:
        """Read no more. Respond and close, or if other responses are due before, close after those."""
        if self._drops_input:
            return
        self._drops_input = True
        self._limits.refused(problem.kind.slug)
        logger.debug("refused a request of %s: %s", self.origin, problem.detail)
        own = self.cycle if self._is_in_body else None
        if own is not None and self.pipeline and self.pipeline[0][0] is own:
            self.pipeline.popleft()
        before = self.pipeline[0][0] if self.pipeline else self._running
        if before is not None and before is not own and not before.response_complete:
            before.keep_alive = False
            return
        if own is not None:
            own.disconnected = True
            own.message_event.set()
        if own is None or not own.response_started:
            self._send_problem(problem)
        self._linger()

    def _send_problem(self, problem: HttpProblem) -> None:
        request_id = secrets.token_hex(8)
        path = bytes(getattr(self, "url", b"")).partition(b"?")[0][:URL_BYTES]
        body = problem.body(path.decode("ascii", "replace"), request_id)
        headers = [
            *self.server_state.default_headers,
            *(
                (name.lower().encode(), value.encode())
                for name, value in {**SECURITY_HEADERS, **problem.headers}.items()
            ),
            (b"x-request-id", request_id.encode()),
            (b"content-type", MEDIA_TYPE.encode()),
            (b"content-length", str(len(body)).encode()),
            (b"connection", b"close"),
        ]
        lines = [b"%b: %b\r\n" % header for header in headers]
        self.transport.write(b"".join([STATUS_LINE[problem.kind.status], *lines, b"\r\n", body]))

    def _linger(self) -> None:
        """Drop what still comes for a moment, then close."""
        self._is_lingering = True
        self._waited = 0.0
        self._limits.wait(self)
        self.flow.resume_reading()
        if self.transport.can_write_eof():  # not over TLS
            self.transport.write_eof()
