"""Creating a job in a transaction that other requests share: as good as one of its own, and much cheaper."""

from collections.abc import Callable

from evertick.api import repeating
from evertick.api.answers import Answer
from evertick.api.operations import Call
from evertick.usecases import idempotency
from evertick.usecases.jobs.create_together import NewJobRequest
from evertick.usecases.jobs.rows import as_spec
from evertick.usecases.jobs.views import Job


async def create_shared(call: Call, body: object, action: str, answer: Callable[[Job], Answer]) -> Answer:
    """Create a job, unless the request was answered before. `answer` tells of the new one."""
    made: list[Answer] = []

    def answer_kept(job: Job) -> idempotency.Answer:
        made.append(answer(job))
        return repeating.kept(made[-1])

    wanted = NewJobRequest(as_spec(body), call.caller.key_id, action, call.request_id, call.asked, answer_kept)
    result = await call.services.creations.ask(call.tenant, wanted)
    if isinstance(result, Job):
        return made[-1] if made else answer(result)  # the last: what was undone before has another id
    answered = repeating.again(result)
    if answered is None:
        raise repeating.in_flight()
    return answered
