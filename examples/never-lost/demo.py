"""Kill it as often as you like: no tick is lost.

python demo.py         runs a job every second and some one-off jobs, until Ctrl-C, SIGTERM or kill -9
python demo.py check   compares the history in the database with the logs
"""

import os
import sys
from datetime import timedelta
from pathlib import Path

from check import check  # beside this file

from evertick import App, Run

DIRECTORY = Path(os.environ.get("EVERTICK_DATA_DIR", "data"))
RAN = DIRECTORY / "ran.log"
PROMISED = DIRECTORY / "promised.log"
DELAYS = [timedelta(seconds=seconds) for seconds in (1, 3, 5, 7, 9)]

# Attempts of a killed process are given to another one after this time. The default, 30 seconds, is long for a demo.
os.environ.setdefault("EVERTICK_LEASE_SECONDS", "3")

app = App(name="never-lost", data_dir=DIRECTORY)


# RUN_ALL runs every missed tick, ALLOW lets them run concurrently with new ticks.
@app.every("1s", missed_window="RUN_ALL", max_missed=10_000, concurrent_policy="ALLOW", max_concurrent=1000)
def tick(run: Run) -> None:
    write(RAN, f"{run.run_id} tick of {run.fire_at:%H:%M:%S}, {run.reason}, attempt {run.attempt}")


@app.handler()
def greet(run: Run, number: int) -> None:
    write(RAN, f"{run.run_id} one-off number {number}, {run.reason}, attempt {run.attempt}")


def write(log: Path, line: str) -> None:
    with log.open("a", encoding="utf-8") as file:
        file.write(f"{line}\n")
    print(line, flush=True)


def promise() -> None:
    """Submit one-off jobs that are due while the demo runs, or after it was killed."""
    for number, delay in enumerate(DELAYS, start=1):
        submitted = app.submit_sync(greet, {"number": number}, delay=delay)
        write(PROMISED, f"{submitted.run_id} of {submitted.job_id} promised for {submitted.fire_at:%H:%M:%S}")


if __name__ == "__main__":
    if sys.argv[1:] == ["check"]:
        sys.exit(check(app, RAN, PROMISED))
    promise()
    print(f"Now kill me: kill -9 {os.getpid()}", flush=True)
    app.run()
