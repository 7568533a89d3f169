"""`evertick history`: the runs of a stretch of time, from the database and from the archive."""

import csv
import sys
from typing import Annotated, Any

import click
from msgspec.structs import asdict

from evertick.cli.backends import RunListFilter
from evertick.cli.commands.runs import RUN_COLUMNS, OfJob, row_of
from evertick.cli.connection import ConnectionOptions, call, connection_options
from evertick.cli.options import EXAMPLE_INSTANT, Limit, parse_instant
from evertick.cli.output import print_listing
from evertick.cli.signatures import Option
from evertick.contract.runs import Gap, RunOrGap
from evertick.runtime.terminal import terminal_safe

DEFAULT_LIMIT = 1_000
CSV_COLUMNS = (
    *("scheduled_at", "job_id", "run_id", "status", "reason", "attempt", "started_at", "finished_at", "duration_ms"),
    *("result_code", "error", "until", "count", "name", "handler", "queue", "worker_id", "behind"),
)


@connection_options
def history(
    connection: ConnectionOptions,
    *,
    from_at: Annotated[
        str, Option("--from", metavar="INSTANT", help=f"Fire times from this on, as in {EXAMPLE_INSTANT}.")
    ],
    to_at: Annotated[str | None, Option("--to", metavar="INSTANT", help="Fire times before this.")] = None,
    job: OfJob = None,
    archive: Annotated[
        bool, Option("--archive", help="Also read the archive, with runs that left the database.")
    ] = False,
    as_csv: Annotated[bool, Option("--csv", help="Print CSV.")] = False,
    limit: Limit = DEFAULT_LIMIT,
) -> None:
    """Show what ran in a stretch of time, the newest first. With --job, also the ticks that did not run.

    Examples

      evertick history --from 2026-06-01T00:00:00Z --to 2026-06-02T00:00:00Z

      evertick history --from 2025-01-01T00:00:00Z --job send-weekly-report --archive --json
    """
    if as_csv and connection.as_json:
        raise click.BadParameter("--csv and --json exclude each other")
    filters = RunListFilter(job, None, parse_instant("--from", from_at), parse_instant("--to", to_at), archive)
    found = call(connection, lambda backend: backend.list_runs(filters, limit), uses_archive=archive)
    if as_csv:
        writer = csv.writer(sys.stdout)
        writer.writerow(CSV_COLUMNS)
        writer.writerows(map(_cells, found.items))
        if found.has_more:
            click.echo(f"Only the first {limit} are shown: use --limit.", err=True)
        return
    print_listing(found, RUN_COLUMNS, row_of, empty="No runs.", as_json=connection.as_json)


def _cells(entry: RunOrGap) -> list[Any]:
    fields = asdict(entry)
    at = ("scheduled_at", "started_at", "finished_at", "until")
    texts = {name: fields[name].isoformat() for name in at if fields.get(name) is not None}
    # A spreadsheet takes a text that begins so for a formula.
    error = None if isinstance(entry, Gap) or entry.error is None else terminal_safe(entry.error)
    texts["error"] = f"'{error}" if error and error[0] in "=+-@" else error
    return [texts.get(name, fields.get(name)) for name in CSV_COLUMNS]
