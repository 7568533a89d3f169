"""TLS of the API: its certificate, which is read again when the files change, and connections until they are secured.

A handshake counts as a connection and has the time of a head. So connections are accepted here: a server that asyncio
secures itself tells of a client only when its handshake is done, and keeps any number of those that never end.
"""

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

from evertick.api.server import connections
from evertick.api.server.connection_limits import ConnectionLimits, LimitedConnection
from evertick.domain.errors import EvertickError

logger = logging.getLogger("evertick.api")

REFRESH_SECONDS = 5.0
CLOSE_SECONDS = 600.0
"""Until a connection that is closed is cut off, its response sent or not. A sweep looks for slow readers before."""
FULL_SECONDS = 1.0
"""The pause after an accept that failed, mostly because the process or the machine has no more descriptors."""

MakeProtocol: TypeAlias = Callable[[LimitedConnection], asyncio.Protocol]
_State: TypeAlias = tuple[tuple[int, int, int], ...]


class CannotUseCertificate(EvertickError):  # noqa: N818 - says what is wrong
    """The certificate or its key cannot be read, or they do not belong together."""


class Certificate:
    """A certificate and its key, in PEM files. `context` has those that were last read without a fault."""

    def __init__(self, certificate: Path, key: Path) -> None:
        self._certificate = certificate
        self._key = key
        self._seen: _State | None = self._state()
        self._refused: _State | None = None
        self.context = self._load()

    def refresh(self) -> None:
        """Read the files again if they have changed. If they cannot be used, what was read before stays."""
        state = self._state()
        if state == self._seen:
            return
        try:
            self.context = self._load()
        except CannotUseCertificate as error:
            if state != self._refused:  # the files may be written one after the other
                logger.warning("the API keeps the certificate that it has: %s", error)
            self._refused = state
        else:
            self._seen, self._refused = state, None
            logger.info("the API has a new certificate, from %s", self._certificate)

    def _state(self) -> _State | None:
        """What differs after a change, also when a link leads to another file."""
        try:
            found = [path.stat() for path in (self._certificate, self._key)]
        except OSError:
            return None
        return tuple((each.st_ino, each.st_size, each.st_mtime_ns) for each in found)

    def _load(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)  # from TLS 1.2 on
        context.set_alpn_protocols(["http/1.1"])
        try:
            for path in (self._certificate, self._key):
                path.open("rb").close()  # the error below does not say which file is missing
            context.load_cert_chain(self._certificate, self._key, _refuse_password)
        except OSError as error:  # ssl.SSLError is one
            reason = error.strerror or str(error)
            files = f"EVERTICK_TLS_CERT {self._certificate} and EVERTICK_TLS_KEY {self._key}"
            raise CannotUseCertificate(f"{files} cannot be used: {reason}") from error
        return context


def _refuse_password() -> str:
    """Without it, OpenSSL asks on the terminal, and the process waits."""
    raise OSError(None, "the key is encrypted: there is nobody to ask for its password")


class TlsListener:
    """Accepts connections, and hands them over once they are secured. `make` gets what counts in its place so far."""

    def __init__(
        self, listener: socket.socket, certificate: Certificate, limits: ConnectionLimits, make: MakeProtocol
    ) -> None:
        self._listener = listener
        self._certificate = certificate
        self._limits = limits
        self._make = make
        self._accepting: asyncio.Task[None] | None = None
        self._handshakes: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        self._accepting = asyncio.create_task(self._accept(), name="accept")

    async def stop(self) -> None:
        """Accept no more, and give up handshakes under way. Connections that were handed over go on."""
        tasks = [*self._handshakes] if self._accepting is None else [self._accepting, *self._handshakes]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                client, _ = await loop.sock_accept(self._listener)
            except ConnectionError:
                continue  # the client is gone already
            except OSError as error:
                logger.warning("the API accepts no connection for a moment: %s", error)
                await asyncio.sleep(FULL_SECONDS)
                continue
            task = asyncio.create_task(self._secure(client), name="handshake")
            self._handshakes.add(task)
            task.add_done_callback(self._handshakes.discard)

    async def _secure(self, client: socket.socket) -> None:
        try:
            handshake = _Handshake(self._limits.origin_of(client.getpeername()[0]))
        except OSError:
            client.close()  # it is gone already
            return
        # Without room for it, it is one of the few that are kept for a moment: also over TLS, /livez is answered.
        self._limits.admit(handshake)
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: self._make(handshake),
                client,
                ssl=self._certificate.context,
                ssl_handshake_timeout=connections.HEAD_SECONDS,
                ssl_shutdown_timeout=CLOSE_SECONDS,
            )
        except OSError as error:  # ssl.SSLError, ConnectionError and TimeoutError are such
            self._limits.refused("handshake")
            logger.debug("the handshake with %s failed: %s", handshake.origin, error)
        finally:
            self._limits.remove(handshake)


class _Handshake:
    """What the limits know of a connection before it is secured."""

    def __init__(self, origin: str) -> None:
        self.origin = origin
        self._task = asyncio.current_task()

    def abort(self) -> None:
        assert self._task is not None
        self._task.cancel()

    def sweep(self) -> None:
        """The event loop has the deadline."""
