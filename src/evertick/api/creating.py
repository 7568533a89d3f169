"""Creating a job in a transaction that other requests share: as good as one of its own, and much cheaper."""

from collections.abc import Callable

from evertick.api import idempotency as repeating
from evertick.api.operations import Call
from evertick.api.responses import Answer
from evertick.usecases import idempotency
from evertick.usecases.create_together import Wanted
from evertick.usecases.views import Job
from evertick.usecases.writing import as_spec


async def create_shared(call: Call, body: object, action: str, answer: Callable[[Job], Answer]) -> Answer:
    """Create a job, unless the request was answered before. `answer` tells of the new one."""
    made: list[Answer] = []

    def answer_kept(job: Job) -> idempotency.Answer:
        made.append(answer(job))
        return repeating.kept(made[-1])

    wanted = Wanted(as_spec(body), call.caller.key_id, action, call.request_id, call.asked, answer_kept)
    result = await call.services.creations.ask(call.tenant, wanted)
    if isinstance(result, Job):
        return made[-1] if made else answer(result)  # the last: what was undone before has another id
    answered = repeating.again(result)
    if answered is None:
        raise repeating.in_flight()
    return answered
