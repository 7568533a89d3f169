"""A response as the client reads it, whichever library received it, and what there is in place of one."""

from collections.abc import Mapping
from typing import NamedTuple, Protocol, TypeAlias


class Response(Protocol):
    """What is read of a response. Names of headers are asked for in lower case."""

    @property
    def status_code(self) -> int: ...

    @property
    def content(self) -> bytes: ...

    @property
    def headers(self) -> Mapping[str, str]: ...


class NoResponse(NamedTuple):
    """There was no response. `never_arrived`: the request certainly did not reach the server."""

    reason: str
    never_arrived: bool

    @classmethod
    def of(cls, error: Exception, *, never_arrived: bool) -> "NoResponse":
        return cls(type(error).__name__ + (f": {error}" if str(error) else ""), never_arrived)


Reply: TypeAlias = Response | NoResponse


def is_success(response: Response) -> bool:
    return 200 <= response.status_code < 300
