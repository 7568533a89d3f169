"""`evertick runs`: list, follow, show, cancel and replay runs."""

import json
from datetime import UTC, datetime, timedelta
from typing import Annotated

import click
from msgspec.structs import asdict

from evertick.cli.backends import RunListFilter
from evertick.cli.connection import Backend, ConnectionOptions, call, connection_options
from evertick.cli.options import EXAMPLE_INSTANT, Limit, parse_instant
from evertick.cli.output import print_fields, print_json, print_line, print_listing, print_result, print_rows
from evertick.cli.signatures import Argument, CommandGroup, Option
from evertick.contract.runs import Gap, Run, RunOrGap
from evertick.domain.serving import rough_duration
from evertick.domain.states import GapStatus, RunStatus
from evertick.runtime.terminal import terminal_safe

app = CommandGroup(help="List, follow, show, cancel and replay runs.")

RunId = Annotated[str, Argument(metavar="RUN", help="Id of the run, as `runs list` shows it.")]
OfJob = Annotated[str | None, Option("--job", metavar="JOB", help="Only this job's runs, and its gaps.")]

RUN_COLUMNS = ("scheduled (UTC)", "job", "handler", "run", "status", "reason", "attempt", "took", "error")
TAIL_PAGE = 200
"""How many of the newest runs `runs tail` reads at a time."""
MAX_BURST = 5_000
"""How far back `runs tail` reads when all runs of a page are new. Older ones are not shown."""

_STATUSES: dict[str, RunStatus | GapStatus] = {str(status): status for status in (*RunStatus, *GapStatus)}


def _status(value: str | None) -> str | None:
    if value is not None and value not in _STATUSES:
        raise click.BadParameter(f"must be one of {', '.join(_STATUSES)}")
    return value


@app.add()
@connection_options
def tail(
    connection: ConnectionOptions,
    *,
    job: OfJob = None,
    last: Annotated[int, Option("--last", "-n", min=0, max=TAIL_PAGE, help="Number of past runs to show.")] = 10,
    every: Annotated[float, Option("--every", metavar="SECONDS", min=0.1, help="Polling interval.")] = 1.0,
) -> None:
    """Follow runs live: a line for each new run, and for each change of its status or attempt. Ctrl-C stops it.

    Examples

      evertick runs tail --job send-weekly-report

      evertick runs tail --json | jq -r 'select(.status == "dead") | .run_id'
    """
    import asyncio  # noqa: PLC0415 - the other commands need no event loop

    from evertick.runtime.process import stop_signal  # noqa: PLC0415

    async def work(backend: Backend) -> None:
        tracker = ChangeTracker(last)
        filters = RunListFilter(None if job is None else (await backend.get_job(job)).job_id)
        with stop_signal() as stopping:
            while not stopping.is_set():
                for entry in tracker.changes(await _newest(backend, filters, tracker)):
                    print_entry(entry, as_json=connection.as_json)
                try:
                    await asyncio.wait_for(stopping.wait(), every)
                except TimeoutError:
                    continue

    call(connection, work, waits=True)


@app.add("list")
@connection_options
def list_runs(
    connection: ConnectionOptions,
    *,
    job: OfJob = None,
    status: Annotated[str | None, Option(callback=_status, help=f"Only this status: {', '.join(_STATUSES)}.")] = None,
    from_at: Annotated[
        str | None, Option("--from", metavar="INSTANT", help=f"Fire times from this on, as in {EXAMPLE_INSTANT}.")
    ] = None,
    to_at: Annotated[str | None, Option("--to", metavar="INSTANT", help="Fire times before this.")] = None,
    limit: Limit = 20,
) -> None:
    """List runs, the newest first. With --job, the list includes the ticks that did not run.

    Examples

      evertick runs list --job send-weekly-report

      evertick runs list --status dead --from 2026-06-01T00:00:00Z --json
    """
    chosen = None if status is None else _STATUSES[status]
    if job is None and isinstance(chosen, GapStatus):
        raise click.BadParameter("a list of ticks that did not run needs --job")
    filters = RunListFilter(job, chosen, parse_instant("--from", from_at), parse_instant("--to", to_at))
    found = call(connection, lambda backend: backend.list_runs(filters, limit))
    # Of all jobs they come by their latest attempts.
    found.items.sort(key=lambda entry: entry.scheduled_at, reverse=True)
    print_listing(found, RUN_COLUMNS, row_of, empty="No runs.", as_json=connection.as_json)


@app.add()
@connection_options
def show(connection: ConnectionOptions, run: RunId) -> None:
    """Show a run with all its attempts.

    Example

      evertick runs show run_…
    """
    detail = call(connection, lambda backend: backend.get_run(run))
    if connection.as_json:
        print_json(detail)
        return
    output = None if detail.output is None else json.dumps(detail.output, ensure_ascii=False)
    fields = asdict(detail.run) | {"error": _first_line(detail.error), "output": output}
    if (going := running_for(detail)) is not None:
        fields["running for"] = going
    print_fields(fields.items())
    click.echo()
    rows = [
        (
            *(each.attempt, each.status, each.started_at, _duration(each.duration_ms)),
            *(each.worker_id, _first_line(each.error)),
        )
        for each in detail.attempts
    ]
    columns = ("attempt", "status", "started (UTC)", "took", "worker", "error")
    print_rows(columns, rows, empty="No attempt yet.")
    for each in detail.attempts:
        _, _, traceback = (each.error or "").partition("\n")
        if traceback:
            click.echo(f"\nTraceback of attempt {each.attempt}:")
            for line in traceback.splitlines():
                print_line(line)


@app.add()
@connection_options
def cancel(connection: ConnectionOptions, run: RunId) -> None:
    """Cancel a run: a running handler is asked to stop, and no attempt follows.

    Example

      evertick runs cancel run_…
    """
    detail = call(connection, lambda backend: backend.cancel_run(run))
    print_result(detail, f"{run} is cancelled.", as_json=connection.as_json)


@app.add()
@connection_options
def replay(connection: ConnectionOptions, run: RunId) -> None:
    """Run a finished run again, as a new run with the same payload.

    Example

      evertick runs replay run_…
    """
    run_id = call(connection, lambda backend: backend.replay_run(run))
    print_result({"run_id": run_id}, f"{run_id} replays it.", as_json=connection.as_json)


class ChangeTracker:
    """Remembers the runs that were shown, to find new and changed ones."""

    def __init__(self, last: int) -> None:
        self._last: int | None = last
        self._known: dict[tuple[object, ...], tuple[object, ...]] = {}

    def is_burst(self, entries: list[RunOrGap]) -> bool:
        """Whether all entries of a page are new, so that there may be older new ones. Not for the first page."""
        return self._last is None and bool(entries) and not any(_key(entry) in self._known for entry in entries)

    def changes(self, entries: list[RunOrGap]) -> list[RunOrGap]:
        """The new and changed ones among the newest entries, the oldest first. Of the first page, the last few."""
        current = {_key(entry): _state(entry) for entry in entries}
        changed = [entry for entry in entries if self._known.get(_key(entry)) != _state(entry)]
        if self._last is not None:
            changed = changed[: self._last]
            self._last = None
        # Forget entries that have left the page. An empty page leaves the memory as it is.
        self._known = current or self._known
        return changed[::-1]


def _key(entry: RunOrGap) -> tuple[object, ...]:
    return (entry.scheduled_at, entry.reason) if isinstance(entry, Gap) else (entry.run_id,)


def _state(entry: RunOrGap) -> tuple[object, ...]:
    if isinstance(entry, Gap):
        return entry.until, entry.count
    # For how long it waits is not news.
    is_unserved = entry.waiting is not None and "serves" in entry.waiting
    return entry.status, entry.attempt, is_unserved


async def _newest(backend: Backend, filters: RunListFilter, tracker: ChangeTracker) -> list[RunOrGap]:
    entries, has_more = await backend.list_runs(filters, TAIL_PAGE)
    if has_more and tracker.is_burst(entries):
        entries, _ = await backend.list_runs(filters, MAX_BURST)
    return entries


def print_entry(entry: RunOrGap, *, as_json: bool) -> None:
    """A run or a gap in one line."""
    if as_json:
        print_json(entry, indent=None)
        return
    from rich.console import Console  # noqa: PLC0415 - as in `output`
    from rich.text import Text  # noqa: PLC0415

    from evertick.cli.tables import STYLES  # noqa: PLC0415

    scheduled_at, name, handler, run_id, status, reason, attempt, took, error = row_of(entry)
    line = Text(f"{scheduled_at:%Y-%m-%d %H:%M:%S}  ")
    line.append(terminal_safe("  ".join(str(each) for each in (name, handler, run_id) if each is not None) + "  "))
    line.append(f"{status!s:<9}", STYLES.get(str(status), ""))
    rest = [f"  {reason}", f"attempt {attempt}" if attempt else None, took, error]
    line.append(terminal_safe("  ".join(str(each) for each in rest if each is not None)))
    Console(highlight=False).print(line, soft_wrap=True)


def row_of(entry: RunOrGap) -> tuple[object, ...]:
    """The columns of a run or a gap. Why a run waits, or how far it is, stands where the error of others does."""
    if isinstance(entry, Gap):
        behind = None if entry.behind is None else f"behind {entry.behind}"
        ticks = f"{entry.count} tick{'s' * (entry.count != 1)}"
        return entry.scheduled_at, None, None, ticks, entry.status, entry.reason, None, None, behind
    going = running_for(entry)
    took = _duration(entry.duration_ms) if going is None else f"running for {going}"
    return (
        *(entry.scheduled_at, entry.name, entry.handler, entry.run_id, entry.status, entry.reason, entry.attempt),
        *(took, entry.waiting or entry.progress or _first_line(entry.error)),
    )


def running_for(run: Run) -> str | None:
    """How long a run that is running has been, by this machine's clock; None if that is not known."""
    if run.status != RunStatus.RUNNING or run.started_at is None:
        return None
    return rough_duration(max(timedelta(0), datetime.now(UTC) - run.started_at))


def _first_line(error: str | None) -> str | None:
    return None if error is None else error.partition("\n")[0]


def _duration(milliseconds: float | None) -> str | None:
    return None if milliseconds is None else f"{milliseconds:,.0f} ms"
