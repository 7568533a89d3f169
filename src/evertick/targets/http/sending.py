"""Sends one request over aiohttp's connections and reads the head of its answer, as `session_settings` bound it."""

from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp
from yarl import URL

LINE_BYTES = 4096
MAX_HEADERS = 64
BUFFER_BYTES = 16_384


class Disconnected(aiohttp.ClientError):
    """The other side closed the connection before it answered."""


def session_settings() -> dict[str, Any]:
    """What a session needs so that no answer costs more memory or time than a delivery may."""
    return {
        "cookie_jar": aiohttp.DummyCookieJar(),
        "trust_env": False,  # no proxy of the environment: it would resolve names itself
        "auto_decompress": False,
        "timeout": aiohttp.ClientTimeout(total=None, sock_connect=None),  # one deadline, the delivery's, rules all
        "read_bufsize": BUFFER_BYTES,
        "max_line_size": LINE_BYTES,
        "max_field_size": LINE_BYTES,
        "max_headers": MAX_HEADERS,
        "middlewares": (_tell_apart,),
    }


async def send(
    session: aiohttp.ClientSession, method: str, url: URL, headers: dict[str, str], body: bytes | None
) -> aiohttp.ClientResponse:
    """The answer, once its head is there. The caller closes it."""
    data = None if body is None else aiohttp.BytesPayload(body)  # else it would look for who can send bytes
    return await session.request(method, url, headers=headers, data=data, allow_redirects=False)


async def _tell_apart(
    request: aiohttp.ClientRequest,
    handler: Callable[[aiohttp.ClientRequest], Awaitable[aiohttp.ClientResponse]],
) -> aiohttp.ClientResponse:
    """Keep aiohttp from sending some methods again by itself: whether to is for the delivery to say, for them all."""
    try:
        return await handler(request)
    except aiohttp.ClientConnectorError:
        raise
    except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError) as error:
        raise Disconnected from error
