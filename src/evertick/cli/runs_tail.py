"""`evertick runs tail`: runs as they come and as they end, until it is told to stop.

Each look reads the newest runs. A run is told when it is new, and again whenever its status or attempt has changed. If
all that a look reads is new, it reads further back, so that a burst is not cut; more than `MOST` of one are not told.
"""

import asyncio
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from evertick.cli.options import AsJson
from evertick.cli.output import STYLES, print_json
from evertick.cli.connection import ConnectionOptions, call, connection_options
from evertick.cli.commands.runs import run_row
from evertick.cli.backend import RunFilter, Backend
from evertick.contract.runs import Gap, RunOrGap
from evertick.runtime.process import stop_signal
from evertick.runtime.terminal_text import terminal_safe

WINDOW = 200
MOST = 5_000


@connection_options
def tail(
    place: ConnectionOptions,
    *,
    job: Annotated[str | None, typer.Option("--job", metavar="JOB", help="Of this job, with its gaps.")] = None,
    last: Annotated[int, typer.Option("--last", "-n", min=0, max=WINDOW, help="Begin with so many of before.")] = 10,
    every: Annotated[float, typer.Option("--every", metavar="SECONDS", min=0.1, help="How often to look.")] = 1.0,
    as_json: AsJson = False,
) -> None:
    """Follow runs live: a line when one comes, and when it ends or goes on. Ctrl-C stops it.

    [bold]Examples[/bold]

      evertick runs tail --job send-weekly-report

      evertick runs tail --json | jq -r 'select(.status == "dead") | .run_id'
    """

    async def work(service: Backend) -> None:
        following = Following(last)
        wanted = RunFilter(None if job is None else (await service.get_job(job)).job_id)
        with stop_signal() as stopping:
            while not stopping.is_set():
                for entry in following.news(await _newest(service, wanted, following)):
                    show(entry, as_json=as_json)
                try:
                    await asyncio.wait_for(stopping.wait(), every)
                except TimeoutError:
                    continue

    call(place, work)


class Following:
    """What was told already, and so what is news."""

    def __init__(self, last: int) -> None:
        self._last: int | None = last
        self._told: dict[tuple[object, ...], tuple[object, ...]] = {}

    def is_burst(self, entries: list[RunOrGap]) -> bool:
        """Whether there may be news before the oldest of these: nothing of it is known, although something is."""
        return self._last is None and bool(entries) and not any(_key(entry) in self._told for entry in entries)

    def news(self, entries: list[RunOrGap]) -> list[RunOrGap]:
        """Those of the newest entries that are new or have changed, the oldest first. At the first look, the last."""
        seen = {_key(entry): _state(entry) for entry in entries}
        fresh = [entry for entry in entries if self._told.get(_key(entry)) != _state(entry)]
        if self._last is not None:
            fresh = fresh[: self._last]
            self._last = None
        # What has left the newest is forgotten, unless it may come back: an empty look says nothing.
        self._told = seen or self._told
        return fresh[::-1]


def _key(entry: RunOrGap) -> tuple[object, ...]:
    return (entry.scheduled_at, entry.reason) if isinstance(entry, Gap) else (entry.run_id,)


def _state(entry: RunOrGap) -> tuple[object, ...]:
    return (entry.until, entry.count) if isinstance(entry, Gap) else (entry.status, entry.attempt)


async def _newest(service: Backend, wanted: RunFilter, following: Following) -> list[RunOrGap]:
    found, is_more = await service.list_runs(wanted, WINDOW)
    if is_more and following.is_burst(found):
        found, _ = await service.list_runs(wanted, MOST)
    return found


def show(entry: RunOrGap, *, as_json: bool) -> None:
    """A run, or a gap in its place, in one line."""
    if as_json:
        print_json(entry, indent=None)
        return
    scheduled_at, name, status, reason, attempt, took, error = run_row(entry)
    line = Text(f"{scheduled_at:%Y-%m-%d %H:%M:%S}  {name}  ")
    line.append(f"{status!s:<9}", STYLES.get(str(status), ""))
    told = [f"  {reason}", f"attempt {attempt}" if attempt else None, took, " ".join(str(error or "").split()) or None]
    line.append(terminal_safe("  ".join(str(each) for each in told if each is not None)))
    Console(highlight=False).print(line, soft_wrap=True)
