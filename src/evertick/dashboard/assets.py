"""Stylesheet, script and logo: served from memory, at addresses that hold a digest of the content.

So browsers keep them for a year, and load a new one when it has changed.
"""

import functools
import hashlib
from importlib import resources
from typing import NamedTuple

from evertick.api.messages import HttpRequest, Response
from evertick.api.operations import ResponseSpec, Routes
from evertick.api.problems import HttpProblem, Kind

routes = Routes("Assets", prefix="")
_MEDIA_TYPES = {"css": "text/css; charset=utf-8", "js": "text/javascript; charset=utf-8", "svg": "image/svg+xml"}
_FOREVER = "public, max-age=31536000, immutable"


class Asset(NamedTuple):
    content: bytes
    media_type: str
    file: str
    """Its name with the digest, as in `app.3f2a….css`."""


@functools.cache
def assets() -> dict[str, Asset]:
    """All assets by their names."""
    found = {}
    for each in (resources.files("evertick.dashboard") / "static").iterdir():
        stem, _, kind = each.name.rpartition(".")
        if kind in _MEDIA_TYPES:
            content = each.read_bytes()
            digest = hashlib.sha256(content).hexdigest()[:12]
            found[each.name] = Asset(content, _MEDIA_TYPES[kind], f"{stem}.{digest}.{kind}")
    return found


def path_of(name: str) -> str:
    return f"/assets/{assets()[name].file}"


@routes.operation("GET", "/assets/{file}", None, ResponseSpec(None, "The asset."))
async def asset(request: HttpRequest, file: str) -> Response:
    """An asset."""
    stem, _, kind = file.rpartition(".")
    found = assets().get(f"{stem.rpartition('.')[0]}.{kind}")
    if found is None:
        raise HttpProblem(Kind.NOT_FOUND, f"there is nothing at {request.path}")
    # A page of another version may ask for another digest, while versions run side by side: not kept then.
    caching = _FOREVER if found.file == file else "no-store"
    return Response(200, found.content, {"Cache-Control": caching}, media_type=found.media_type)
