"""Forms: how their bodies are read, checked for where they come from, and decoded."""

from collections.abc import Iterable
from typing import Any
from urllib.parse import parse_qsl

from msgspec import Struct

from evertick.api.bodies.request_body import IncomingBody, check_media_type
from evertick.api.decoding import read_pairs
from evertick.api.operations import BodySpec
from evertick.api.problems import HttpProblem, Kind
from evertick.dashboard.sessions import CSRF_FIELD, check_form

URLENCODED = "application/x-www-form-urlencoded"
MAX_FIELDS = 1_000


class Fields(dict[str, str]):
    """A form's fields as texts, the last of each name; `all` has the others too. Empty ones are left out."""

    def __init__(self, pairs: Iterable[tuple[str, str]]) -> None:
        self.pairs = list(pairs)
        super().__init__(self.pairs)

    def all(self, name: str) -> list[str]:
        return [value for each, value in self.pairs if each == name]


def form(shape: type[Struct] | None = None) -> BodySpec:
    """The body of a POST: a struct, or `Fields` where a handler reads the texts itself."""

    def decode(pairs: list[tuple[str, str]]) -> Any:
        return Fields(pairs) if shape is None else read_pairs(pairs, shape)

    return BodySpec(shape, _read, is_required=True, decode=decode)


async def _read(body: IncomingBody) -> list[tuple[str, str]]:
    check_media_type(body.headers, URLENCODED)
    pairs = parse_form(await body.document())
    check_form(body.headers, dict(pairs).get(CSRF_FIELD, ""))
    return [(name, value) for name, value in pairs if name != CSRF_FIELD]


def parse_form(data: bytes) -> list[tuple[str, str]]:
    try:
        pairs = parse_qsl(data.decode("utf-8"), max_num_fields=MAX_FIELDS, errors="strict")
    except ValueError as error:
        raise HttpProblem(Kind.MALFORMED, f"the form cannot be read: {error}") from None
    # Browsers send lines as CRLF.
    return [(name, value.replace("\r\n", "\n")) for name, value in pairs]
