"""Creating jobs by the thousand: a JSON array or one job on each line, and a verdict on each."""

from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Any, NamedTuple

from evertick.api.answers import Answer, encode, ok
from evertick.api.operations import Body, Call, Section, Shown
from evertick.api.problems import Kind, Problem
from evertick.api.reading import JSON, MOST_BATCH_BYTES, NDJSON, check_media_type, decode, read_bytes
from evertick.domain.access import KeyRole
from evertick.domain.admission import Request
from evertick.domain.errors import Fault
from evertick.usecases.create_many import Verdict, create_many

section = Section("Jobs")

MOST_JOBS = 10_000


class Batch(NamedTuple):
    """The lines of a batch, and those that are not even JSON, by their place."""

    lines: list[object]
    malformed: dict[int, str]
    media_type: str


async def read_batch(headers: Mapping[str, str], stream: AsyncIterator[bytes]) -> Batch:
    media_type = check_media_type(headers, JSON, NDJSON)
    data = await read_bytes(headers, stream, MOST_BATCH_BYTES)
    batch = _read_lines(data) if media_type == NDJSON else _read_array(data)
    if len(batch.lines) > MOST_JOBS:
        fault = Fault("", f"has at most {MOST_JOBS} jobs, not {len(batch.lines)}")
        raise Problem(Kind.INVALID, f"a batch {fault.reason}", [fault])
    return batch


def _read_array(data: bytes) -> Batch:
    found = decode(data)
    if not isinstance(found, list):
        raise Problem(Kind.INVALID, "the body must be an array of jobs", [Fault("", "must be an array of jobs")])
    return Batch(found, {}, JSON)


def _read_lines(data: bytes) -> Batch:
    lines: list[object] = []
    malformed: dict[int, str] = {}
    for line in data.split(b"\n"):
        if not line.strip():
            continue
        try:
            lines.append(decode(line))
        except Problem as problem:
            malformed[len(lines)] = problem.detail.replace("the body", "the line")
            lines.append(None)
    return Batch(lines, malformed, NDJSON)


@section.operation(
    "POST",
    "/jobs:batch",
    KeyRole.EDITOR,
    answers={200: Shown("Verdicts", "One verdict for each job, in their order.")},
    body=Body("Batch", read_batch, is_required=True),
    cost=lambda batch: Request(submits=max(1, len(batch.lines)), jobs=len(batch.lines)),
)
async def create_jobs(call: Call, body: Batch) -> Answer:
    """Create many jobs at once.

    Those that can be are created, whatever becomes of the others. As `application/x-ndjson` it is one job on each
    line, and one verdict on each.
    """
    readable = [line for number, line in enumerate(body.lines) if number not in body.malformed]
    made = iter(await create_many(call.tenant, readable))
    verdicts = [
        _refused([Fault("", body.malformed[number])], 400) if number in body.malformed else _shape(next(made))
        for number in range(len(body.lines))
    ]
    numbered: list[dict[str, Any]] = [{"line": number, **verdict} for number, verdict in enumerate(verdicts, 1)]
    created = sum(verdict["status"] == 201 for verdict in verdicts)
    if body.media_type == JSON:
        return ok(numbered, created=created, subject=f"{created} jobs")
    text = b"".join(encode(verdict) + b"\n" for verdict in numbered)
    return Answer(200, text, media_type=NDJSON, created=created, subject=f"{created} jobs")


def _shape(verdict: Verdict) -> dict[str, Any]:
    if verdict.job_id is not None:
        return {"status": 201, "job_id": verdict.job_id}
    return _refused(verdict.faults, 422)


def _refused(faults: Iterable[Fault], status: int) -> dict[str, Any]:
    return {"status": status, "errors": [{"pointer": pointer, "detail": reason} for pointer, reason in faults]}
