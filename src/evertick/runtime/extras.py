"""The parts of Evertick that pip installs only when asked for, and what to say where they are missing."""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

from evertick.domain.errors import EvertickError

SERVER_PACKAGES = frozenset({"aiohttp", "asyncpg", "cryptography", "httptools", "uvicorn", "yarl"})


class MissingExtra(EvertickError, ImportError):  # noqa: N818 - says what is missing
    """A part of Evertick is not installed."""


def has_server() -> bool:
    """Whether the server's packages are installed; imports none of them."""
    try:
        return find_spec("asyncpg") is not None
    except ModuleNotFoundError:
        return False


def needs_server(what: str) -> str:
    return f"{what} needs the server: pip install 'evertick[server]'"


@contextmanager
def server_extra(what: str) -> Iterator[None]:
    """Around imports that need the server's packages: says how to install them where they are missing."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in SERVER_PACKAGES:
            raise
        raise MissingExtra(needs_server(what)) from error
