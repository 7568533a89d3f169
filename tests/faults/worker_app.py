"""A worker's handlers for fault tests: each delivery is one line in a log, written in one piece before anything else.

Started as `evertick worker faults.worker_app:app` with `EVERTICK_TEST_LOG` naming the log.
"""

import asyncio
import json
import os
import time
from pathlib import Path

from evertick import App, Run

app = App(queue="faults", name="faults")
_LOG = os.open(os.environ.get("EVERTICK_TEST_LOG", os.devnull), os.O_WRONLY | os.O_CREAT | os.O_APPEND)


def _note(run: Run, **more: str) -> None:
    line = {
        **more,
        "run_id": run.run_id,
        "idempotency_key": run.idempotency_key,
        "token": run.fencing_token,
        "attempt": run.attempt,
        "at_us": time.time_ns() // 1000,
        "worker": str(os.getpid()),
    }
    os.write(_LOG, (json.dumps(line) + "\n").encode())


@app.handler("note")
async def note(run: Run) -> None:
    """The side effect alone."""
    _note(run)


@app.handler("linger")
async def linger(run: Run, seconds: float = 0.2) -> None:
    """The side effect, then some time during which the attempt is open."""
    _note(run)
    await asyncio.sleep(seconds)


@app.handler("stay")
async def stay(run: Run, seconds: float, owner: str) -> None:
    """As `linger`, and whose payload this worker got to see."""
    _note(run, owner=owner, serves=os.environ["EVERTICK_TEST_TENANT"])
    await asyncio.sleep(seconds)


@app.handler("linger_in_thread")
def linger_in_thread(run: Run, seconds: float = 0.2) -> None:
    """As `linger`, in a thread."""
    _note(run)
    time.sleep(seconds)


@app.handler("hold")
async def hold(run: Run, until: str, *, effect: str = "before") -> None:
    """Stay open until a file appears; the side effect comes before or after."""
    if effect == "before":
        _note(run)
    while not Path(until).exists():  # noqa: ASYNC110, ASYNC240 - the file comes from another process
        await asyncio.sleep(0.02)
    if effect == "after":
        _note(run)


other = App(queue="faults", name="other")
"""A second app whose runs wait in the same queue, started as `faults.worker_app:other`."""


@other.handler("note_elsewhere")
async def note_elsewhere(run: Run) -> None:
    """The side effect alone, by a handler that the first app has not."""
    _note(run)
