"""Creating jobs by the thousand: a JSON array or one job on each line, and a verdict on each."""

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from evertick.api.answers import Answer, encode, ok
from evertick.api.costs import of_batch
from evertick.api.operations import Body, Call, Section, Shown
from evertick.api.problems import Kind, Problem
from evertick.api.reading import JSON, MOST_BATCH_BYTES, NDJSON, check_media_type, decode, read_bytes
from evertick.domain.access import KeyRole
from evertick.domain.errors import Fault
from evertick.usecases.create_many import Ahead, Verdict, create_many, draft_ahead

section = Section("Jobs")

MOST_JOBS = 10_000


class Batch(NamedTuple):
    """The lines of a batch, and those that are not even JSON, by their place."""

    lines: list[object]
    malformed: dict[int, str]
    media_type: str
    numbers: Sequence[int]
    """What each is called: the line of the body that it is on."""
    ahead: Ahead | None = None

    @property
    def readable(self) -> list[int]:
        """The places of those that are JSON."""
        return [place for place in range(len(self.lines)) if place not in self.malformed]


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
    return Batch(found, {}, JSON, range(1, len(found) + 1))


def _read_lines(data: bytes) -> Batch:
    lines: list[object] = []
    malformed: dict[int, str] = {}
    numbers: list[int] = []
    for number, line in enumerate(data.split(b"\n"), 1):
        if not line.strip():
            continue
        numbers.append(number)
        try:
            lines.append(decode(line))
        except Problem as problem:
            malformed[len(lines)] = problem.detail.replace("the body", "the line")
            lines.append(None)
    return Batch(lines, malformed, NDJSON, numbers)


async def _prepared(call: Call, batch: Batch) -> Batch:
    drafting = draft_ahead(call.tenant, [batch.lines[place] for place in batch.readable])
    return batch._replace(ahead=await call.while_waited_for(drafting))


@section.operation(
    "POST",
    "/jobs:batch",
    KeyRole.EDITOR,
    answers={200: Shown("Verdicts", "One verdict for each job, in their order.", also={NDJSON: "VerdictLines"})},
    body=Body("Batch", read_batch, is_required=True, also={NDJSON: "BatchLines"}),
    cost=lambda batch: of_batch(batch.lines),
    prepare=_prepared,
)
async def create_jobs(call: Call, body: Batch) -> Answer:
    """Create many jobs at once.

    Those that can be are created, whatever becomes of the others. As `application/x-ndjson` it is one job on each
    line, and one verdict on each.
    """
    places, malformed = body.readable, body.malformed
    lines = [body.numbers[place] for place in places]
    made = iter(await create_many(call.tenant, [body.lines[place] for place in places], body.ahead, lines))
    verdicts = [
        _refused(line, [Fault("", malformed[place])], 400) if place in malformed else _shape(line, next(made))
        for place, line in enumerate(body.numbers)
    ]
    created = sum(verdict["status"] == 201 for verdict in verdicts)
    if body.media_type == JSON:
        return ok(verdicts, created=created, subject=f"{created} jobs")
    text = b"".join(encode(verdict) + b"\n" for verdict in verdicts)
    return Answer(200, text, media_type=NDJSON, created=created, subject=f"{created} jobs")


def _shape(line: int, verdict: Verdict) -> dict[str, Any]:
    if verdict.job_id is not None:
        return {"line": line, "status": 201, "job_id": verdict.job_id}
    return _refused(line, verdict.faults, 422)


def _refused(line: int, faults: Iterable[Fault], status: int) -> dict[str, Any]:
    errors = [{"pointer": pointer, "detail": reason} for pointer, reason in faults]
    return {"line": line, "status": status, "errors": errors}
