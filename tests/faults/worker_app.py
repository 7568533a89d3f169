"""A worker's handlers for fault tests: each delivery is one line in a log, written in one piece before anything else.

Started as `evertick worker faults.worker_app:app` with `FAULTS_LOG` naming the log.
"""

import asyncio
import fcntl
import json
import os
import time
from pathlib import Path

from evertick import App, Run

app = App(queue="faults", name="faults")
_LOG = os.open(os.environ.get("FAULTS_LOG", os.devnull), os.O_WRONLY | os.O_CREAT | os.O_APPEND)


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
    _note(run, owner=owner, serves=os.environ["FAULTS_TENANT"])
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


@app.handler("occupy")
async def occupy(run: Run, folder: str, seconds: float = 0.05) -> None:
    """Tell how many handlers run in all processes at once, this one included. A killed process counts no more."""
    _note(run, running=str(_enter(Path(folder), run)))
    await asyncio.sleep(seconds)
    _leave(Path(folder), run)


@app.handler("block_loop")
async def block_loop(run: Run, seconds: float) -> None:
    """Keep the event loop from everything else, but not the threads."""
    _note(run)
    time.sleep(seconds)  # noqa: ASYNC251 - that is what it is for


@app.handler("hold_gil")
async def hold_gil(run: Run, seconds: float) -> None:
    """Keep the whole process from running any Python, for about so long and in one piece, at the first attempt."""
    _note(run)
    if run.attempt == 1:
        began = time.monotonic()
        sum(range(_SOME))
        sum(range(int(_SOME * seconds / (time.monotonic() - began))))


@app.handler("fail")
async def fail(run: Run, **anything: object) -> None:
    """Fail, whatever the payload."""
    _note(run)
    raise RuntimeError("a payload that nobody can handle")


_SOME = 5_000_000
_OPEN: dict[str, int] = {}


def _enter(folder: Path, run: Run) -> int:
    """Hold a lock, as each running handler does, and count those that are held."""
    with (folder / "all").open("w") as every:
        fcntl.flock(every, fcntl.LOCK_EX)  # nobody enters or leaves meanwhile
        mine = folder / f"{run.fencing_token}.running"
        _OPEN[run.fencing_token] = descriptor = os.open(mine, os.O_CREAT | os.O_WRONLY)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        return 1 + sum(_is_held(each) for each in folder.glob("*.running") if each != mine)


def _leave(folder: Path, run: Run) -> None:
    with (folder / "all").open("w") as every:
        fcntl.flock(every, fcntl.LOCK_EX)
        (folder / f"{run.fencing_token}.running").unlink()
        os.close(_OPEN.pop(run.fencing_token))


def _is_held(path: Path) -> bool:
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        return False


other = App(queue="faults", name="other")
"""A second app whose runs wait in the same queue, started as `faults.worker_app:other`."""


@other.handler("note_elsewhere")
async def note_elsewhere(run: Run) -> None:
    """The side effect alone, by a handler that the first app has not."""
    _note(run)
