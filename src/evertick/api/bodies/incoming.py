"""Reads the bodies of authenticated requests within their limits. What does not fit raises a Problem."""

import hashlib
from collections.abc import AsyncIterator, Mapping

from evertick.api.bodies.body_limits import Reservation, count_values
from evertick.api.problems import Kind, Problem
from evertick.domain.errors import Fault

MAX_BYTES = 1_048_576
MAX_VALUES = 131_072
"""Of one document. Decoding as many empty lists takes about 10 ms, and a job whose payload fits has fewer."""
TOO_MANY_VALUES = f"has more than {MAX_VALUES} values, by its commas and brackets"
JSON = "application/json"
NDJSON = "application/x-ndjson"


class IncomingBody:
    """The body of a request with a key, as it arrives. What is read counts in its reservation and in its digest."""

    def __init__(self, headers: Mapping[str, str], stream: AsyncIterator[bytes], reservation: Reservation) -> None:
        self.headers = headers
        self.reservation = reservation
        self.digest = hashlib.sha256()
        self._stream = stream

    @property
    def announced(self) -> int | None:
        """The size that the client announced, if it did."""
        length = self.headers.get("content-length", "")
        return int(length) if length.isdecimal() else None

    async def parts(self, most: int) -> AsyncIterator[bytes]:
        """The body in parts, unless it is too large; then no more of it is read than that takes to know."""
        if self.announced is not None:
            if self.announced > most:
                raise too_large(f"a body has at most {most} bytes")
            self.reservation.check(self.announced)
        size = 0
        async for part in self._stream:
            size += len(part)
            if size > most:
                raise too_large(f"a body has at most {most} bytes")
            self.reservation.add(len(part))
            self.digest.update(part)
            yield part

    async def document(self) -> bytes:
        """A whole body that is one document, of so many values that it can be decoded at once."""
        data = b"".join([part async for part in self.parts(MAX_BYTES)])
        values = count_values(data)
        if values > MAX_VALUES:
            raise Problem(Kind.INVALID, f"the body {TOO_MANY_VALUES}", [Fault("", TOO_MANY_VALUES)])
        self.reservation.add_values(values)
        return data


def check_media_type(headers: Mapping[str, str], *accepted: str) -> str:
    """The body's media type; without a word about it, the first accepted one."""
    given = headers.get("content-type")
    if given is None:
        return accepted[0]
    media_type, *parameters = given.lower().split(";")
    found = media_type.strip()
    pairs = (parameter.partition("=") for parameter in parameters)
    charsets = {value.strip().strip('"') for name, _, value in pairs if name.strip() == "charset"}
    if found not in accepted or not charsets <= {"utf-8", "utf8"}:
        raise Problem(Kind.UNSUPPORTED, f"send {' or '.join(accepted)}, in UTF-8")
    return found


def too_large(detail: str) -> Problem:
    # The rest of the body is not read, so the connection is of no further use.
    return Problem(Kind.TOO_LARGE, detail, headers={"Connection": "close"})
