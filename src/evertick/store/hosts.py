"""The hosts of a database URL: several may be named, of which one is the primary and any may hang."""

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import NamedTuple
from urllib.parse import SplitResult, parse_qs, unquote, urlsplit

from evertick.store.links import LinkConnection

HEAD_START_SECONDS = 1.0
"""A healthy host in the same region answers within milliseconds: after a second the next is tried beside it."""
DEFAULT_PORT = "5432"


class Host(NamedTuple):
    """One host of a URL, or the directory of a server's socket."""

    name: str
    port: int

    def __str__(self) -> str:
        return f"[{self.name}]:{self.port}" if ":" in self.name else f"{self.name}:{self.port}"


class NoHostAnswered(Exception):  # noqa: N818 - says what is wrong
    """None of several hosts could be used, and why for each."""

    def __init__(self, failures: Mapping[Host, Exception]) -> None:
        super().__init__("no host answered")
        self.failures = failures


_answered: dict[tuple[Host, ...], Host] = {}
"""Which of several hosts was the primary when one was last connected to."""


def hosts_of(url: str) -> tuple[Host, ...]:
    """The hosts that a URL names; none if it names none. ValueError: a port is not a number, or there are too few."""
    parts = urlsplit(url)
    query = parse_qs(parts.query)
    ports = query.get("port", [os.environ.get("PGPORT", "")])[-1] or DEFAULT_PORT
    listed = parts.netloc.rpartition("@")[2]
    names = [unquote(name) for name in listed.split(",")] if listed else query.get("host", [""])[-1].split(",")
    defaults = ports.split(",") if "," in ports else [ports] * len(names)
    return tuple(_host(name, port) for name, port in zip(names, defaults, strict=True) if name)


def chooses_session(url: str) -> bool:
    """Whether the URL or the environment says what kind of server is wanted."""
    return "target_session_attrs" in parse_qs(urlsplit(url).query) or "PGTARGETSESSIONATTRS" in os.environ


def place(parts: SplitResult) -> str:
    """Where a URL leads to, without user and password."""
    host = parts.netloc.rpartition("@")[2] or parse_qs(parts.query).get("host", ["the default host"])[-1]
    return f"database {parts.path.lstrip('/') or '(default)'} at {host}"


async def first_to_answer(hosts: Sequence[Host], dial: Callable[[Host], Awaitable[LinkConnection]]) -> LinkConnection:
    """Dial the hosts in turn, beginning with the one that answered last; the first connection wins.

    The next is dialled when the one before failed, or has not answered for a moment. So a host that hangs hides no
    other, and has as much time as if it were alone.
    """
    known = tuple(hosts)
    last = _answered.get(known)
    waiting = sorted(known, key=lambda host: host != last)
    dialled: dict[asyncio.Future[LinkConnection], Host] = {}
    failures: dict[Host, Exception] = {}
    try:
        while waiting or dialled:
            if waiting:
                host = waiting.pop(0)
                dialled[asyncio.ensure_future(dial(host))] = host
            pause = HEAD_START_SECONDS if waiting else None
            done, _ = await asyncio.wait(dialled, timeout=pause, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                host = dialled.pop(task)
                try:
                    connection = task.result()
                except Exception as error:  # noqa: BLE001 - reported together, if no other host answers
                    failures[host] = error
                else:
                    _answered[known] = host
                    return connection
        raise NoHostAnswered(failures)
    finally:
        for task in dialled:
            task.cancel()
            task.add_done_callback(_hang_up)


def _host(text: str, default: str) -> Host:
    if text.startswith("["):
        name, _, port = text[1:].partition("]")
        return Host(name, int(port.removeprefix(":") or default))
    if text.startswith("/"):
        return Host(text, int(default))
    name, _, port = text.partition(":")
    return Host(name, int(port or default))


def _hang_up(late: "asyncio.Future[LinkConnection]") -> None:
    """Close a connection that came after the first one."""
    if not late.cancelled() and late.exception() is None:
        late.result().terminate()
