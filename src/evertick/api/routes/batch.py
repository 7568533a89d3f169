"""Creating jobs by the thousand: a JSON array or one job on each line, and a verdict on each."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from evertick.api.bodies.batches import BatchText, DecodedBatch, decode_batch, read_batch
from evertick.api.bodies.request_body import JSON, NDJSON
from evertick.api.messages import AuthenticatedRequest, Response, encode
from evertick.api.operations import BodySpec, ResponseSpec, Routes
from evertick.api.problems import Kind, retry_seconds
from evertick.contract.jobs import Verdict
from evertick.domain.access import KeyRole
from evertick.domain.admission import OVERLOADED, AdmissionRequest, Refused, Throttled
from evertick.domain.errors import Fault
from evertick.runtime.loop import Slices
from evertick.usecases.errors import QuotaReached, refusal_text
from evertick.usecases.jobs import costs
from evertick.usecases.jobs.create_many import DraftedBatch, create_many, draft_batch

routes = Routes("Jobs")

MAX_FAULTS_PER_LINE = 20
FAULT_BYTES_PER_LINE = 256
FAULT_BYTES_PER_BYTE = 2
"""All faults but the first of each line have this much room for each line and each byte of the batch."""


class _Prepared(NamedTuple):
    """A batch, with what was done before the transaction for those of its jobs that can be read.

    `cut`: the quota that does not admit its last jobs. `overload`: jobs that are refused because of their priority.
    """

    batch: DecodedBatch
    readable: Sequence[int]
    drafted: DraftedBatch
    cut: Throttled | Refused | None
    overload: frozenset[int]


async def _cost(_: AuthenticatedRequest, text: BatchText) -> AdmissionRequest:
    """What is known of a batch before it is decoded."""
    return costs.of_batch(len(text.numbers))


async def _prepared(request: AuthenticatedRequest, text: BatchText) -> _Prepared:
    assert request.admitted is not None, "it has a cost"
    batch = await decode_batch(text, request.reservation, request.admitted.jobs)
    readable = [place for place in range(len(batch.lines)) if place not in batch.unreadable]
    overload = await _overload(request, batch, readable)
    readable = [place for place in readable if place not in overload]
    jobs = [batch.lines[place] for place in readable]
    try:
        await request.admit(await costs.of_runs(jobs))
    except QuotaReached:
        # Nothing of the batch is done, so what was drawn for it is for the next requests.
        submits = request.admitted.submits - len(overload)  # which gave theirs back
        request.services.quotas.give_back(request.tenant.tenant_id, submits)
        raise
    drafted = await request.cancel_on_disconnect(draft_batch(request.traced_tenant, jobs))
    return _Prepared(batch, readable, drafted, request.admitted.cut, overload)


async def _overload(request: AuthenticatedRequest, batch: DecodedBatch, readable: Sequence[int]) -> frozenset[int]:
    """The places of jobs whose priority an overloaded system refuses. They draw nothing from the rate."""
    quotas, tenant = request.services.quotas, request.caller.tenant
    refused = await quotas.overload(tenant.tenant_id)
    if not refused:
        return frozenset()
    places = frozenset(place for place in readable if costs.priority_of(batch.lines[place]) in refused)
    quotas.give_back(tenant.tenant_id, len(places))
    return places


@routes.operation(
    "POST",
    "/jobs:batch",
    KeyRole.EDITOR,
    ResponseSpec(list[Verdict], "One verdict for each job, in their order.", also={NDJSON: "VerdictLines"}),
    body=BodySpec("Batch", read_batch, is_required=True, prepare=_prepared, also={NDJSON: "BatchLines"}),
    cost=_cost,
)
async def create_jobs(request: AuthenticatedRequest, body: _Prepared) -> Response:
    """Create many jobs at once.

    Those that can be are created, whatever becomes of the others. Where a quota does not admit all of them, the first
    are created, and the verdicts on the others have status 429 and name the quota. Under overload so have those on jobs
    of low priority. As `application/x-ndjson` it is one
    job on each line, and one verdict on each. A job has at most 1 MiB, as alone; all of them 32 MiB and 1,000,000
    values.
    """
    batch, readable, drafted, cut, overload = body
    jobs, lines = [batch.lines[place] for place in readable], [batch.numbers[place] for place in readable]
    made = dict(zip(readable, await create_many(request.traced_tenant, jobs, drafted, lines), strict=True))
    created, slices = 0, Slices()
    verdicts, writer = [], _VerdictWriter(batch)
    for place, line in enumerate(batch.numbers):
        if slices.is_over:
            await slices.pause()
        if place >= len(batch.lines):
            assert cut is not None, "all that were admitted are decoded"
            verdicts.append(_over_quota(line, cut))
        elif place in overload:
            verdicts.append(_over_quota(line, OVERLOADED))
        elif place in batch.unreadable:
            status, reason = batch.unreadable[place]
            verdicts.append(writer.refused(line, [Fault("", reason)], status))
        elif made[place].job_id is None:
            verdicts.append(writer.refused(line, made[place].faults, 422))
        else:
            created += 1
            verdicts.append(encode({"line": line, "status": 201, "job_id": made[place].job_id}))
    is_array = batch.media_type == JSON
    text = b"[" + b",".join(verdicts) + b"]" if is_array else b"".join(verdict + b"\n" for verdict in verdicts)
    limit = cut or (OVERLOADED if overload else None)
    headers = {} if limit is None else {"Retry-After": str(retry_seconds(limit))}
    subject = f"{created} jobs"
    return Response(200, text, media_type=batch.media_type, headers=headers, created_jobs=created, subject=subject)


def _over_quota(line: int, cut: Throttled | Refused) -> bytes:
    errors = [{"pointer": "", "detail": refusal_text(cut)}]
    return encode({"line": line, "status": Kind.OVER_QUOTA.status, "quota": cut.quota, "errors": errors})


class _VerdictWriter:
    """Writes verdicts, of which all together are not much longer than the batch: each has its first fault, and the
    others have room or are counted.
    """

    def __init__(self, batch: DecodedBatch) -> None:
        self._room = FAULT_BYTES_PER_LINE * len(batch.numbers) + FAULT_BYTES_PER_BYTE * batch.size

    def refused(self, line: int, faults: Sequence[Fault], status: int) -> bytes:
        first, *others = [{"pointer": pointer, "detail": reason} for pointer, reason in faults[:MAX_FAULTS_PER_LINE]]
        errors = [first]
        for error in others:
            self._room -= len(error["pointer"]) + len(error["detail"]) + len(_MEMBERS)
            if self._room < 0:
                break
            errors.append(error)
        verdict: dict[str, Any] = {"line": line, "status": status, "errors": errors}
        if len(errors) < len(faults):
            errors.append({"pointer": "", "detail": f"and {len(faults) - len(errors)} more faults"})
        return encode(verdict)


_MEMBERS = '{"pointer":"","detail":""},'
