"""What the server answers when something is wrong."""

from typing import Annotated, ClassVar

from msgspec import Meta, Struct

from evertick.contract.annotations import Schema
from evertick.domain.limits import QuotaName


class InputError(Struct, frozen=True):
    """One thing wrong with an input."""

    pointer: Annotated[str, Meta(description="An RFC 6901 JSON pointer; empty for the whole.")] = ""
    detail: str = ""
    json_schema: ClassVar[Schema] = {"required": ["pointer", "detail"]}


class Problem(Struct, frozen=True, kw_only=True):
    """What is wrong, as RFC 9457 has it."""

    type: Annotated[str, Meta(examples=["urn:evertick:problem:not-found"], extra_json_schema={"format": "uri"})] = (
        "about:blank"
    )
    title: str = ""
    status: Annotated[int, Meta(ge=400, le=599)] = 500
    detail: str = ""
    instance: str = ""
    request_id: str = ""
    errors: tuple[InputError, ...] = ()
    quota: Annotated[str, Meta(description=f"Which quota stood in the way: {', '.join(QuotaName)}.")] = ""
    run_id: Annotated[str, Meta(description="Of a trigger that was refused: the run that is open.")] = ""
    json_schema: ClassVar[Schema] = {
        "required": ["type", "title", "status", "detail", "instance", "request_id"],
    }
