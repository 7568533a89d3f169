"""`evertick preview`: when a schedule will fire, before any job has it. Needs no server."""

import json
from datetime import UTC, datetime, timedelta
from typing import Annotated, NoReturn

import typer

from evertick.cli.exit_codes import Exit
from evertick.cli.preview_json import as_json
from evertick.cli.preview_table import print_table
from evertick.domain.errors import InvalidInput
from evertick.domain.ids import Prefix, parse_id
from evertick.domain.policies import DST_PRESETS, DstGap, DstOverlap
from evertick.domain.schedule.preview import MAX_ROWS, as_new_job, preview as look_ahead
from evertick.domain.schedule.schedule import Schedule
from evertick.domain.stable_hash import stable_int

_YEARS = range(1900, 9001)
"""Years an instant on the command line may have: all that people schedule in, none that overflow in some zone."""

_INSTANT = "2026-03-07T00:00:00Z"


def preview(  # noqa: PLR0917 - Typer passes them by name
    schedule: Annotated[
        str,
        typer.Argument(help="Cron, @daily, 'every 5m', R/…, RRULE:…, an instant, now, 'in 90s' or manual."),
    ],
    timezone: Annotated[str, typer.Option("--timezone", "-z", help="IANA name of the zone.")] = "UTC",
    after: Annotated[
        str | None, typer.Option(metavar="INSTANT", help=f"Fire times after this, as in {_INSTANT}. (default: now)")
    ] = None,
    count: Annotated[int, typer.Option("--count", "-n", min=1, max=MAX_ROWS, help="How many fire times.")] = 10,
    dst_gap: Annotated[
        DstGap | None, typer.Option(help="What becomes of a time that the clocks jump over. (default: catch_up)")
    ] = None,
    dst_overlap: Annotated[
        DstOverlap | None, typer.Option(help="Which of two equal times on the clock runs. (default: first)")
    ] = None,
    preset: Annotated[
        str, typer.Option(help=f"Daylight saving as another scheduler has it: {', '.join(DST_PRESETS)}.")
    ] = "evertick",
    start_at: Annotated[str | None, typer.Option(metavar="INSTANT", help="Never before this.")] = None,
    end_at: Annotated[str | None, typer.Option(metavar="INSTANT", help="Never after this.")] = None,
    key: Annotated[str, typer.Option(help="The job's id, from which H and jitter follow.")] = "",
    jitter_seconds: Annotated[int, typer.Option(min=0, max=86_400, help="Window of the job's jitter.")] = 0,
    as_object: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show when a schedule fires, in plain English and in its own zone, with what daylight saving does to it.

    [bold]Examples[/bold]

      evertick preview "30 2 * * *" --timezone America/New_York --after 2026-03-07T00:00:00Z

      evertick preview "0 9 * * MON#1" -z Europe/Berlin -n 12 --preset quartz

      evertick preview "RRULE:FREQ=MONTHLY;BYDAY=-1FR;BYHOUR=17" --json
    """
    try:
        gap, overlap = _preset(preset)
        from_at = _instant("after", after) or datetime.now(UTC).replace(microsecond=0)
        window = _instant("start_at", start_at), _instant("end_at", end_at)

        def build(anchor_at: datetime | None) -> Schedule:
            return Schedule(
                schedule, timezone, dst_gap or gap, dst_overlap or overlap, *window, key, anchor_at=anchor_at
            )

        ahead = look_ahead(
            as_new_job(build, from_at),
            from_at,
            count,
            jitter=timedelta(seconds=jitter_seconds),
            job_id=_job_id(key),
        )
    except InvalidInput as error:
        _refuse(error, as_object=as_object)
    except OverflowError:  # an instant in the text that its zone moves beyond the years 1 to 9999
        _refuse(InvalidInput("schedule", "a date in it is beyond the calendar"), as_object=as_object)
    if as_object:
        typer.echo(json.dumps(as_json(ahead), indent=2))
    else:
        print_table(ahead, count)


def _preset(name: str) -> tuple[DstGap, DstOverlap]:
    if name not in DST_PRESETS:
        raise InvalidInput("preset", f"{name!r} is not one of {', '.join(DST_PRESETS)}")
    return DST_PRESETS[name]


def _instant(field: str, text: str | None) -> datetime | None:
    if text is None:
        return None
    try:
        at = datetime.fromisoformat(text.strip().upper())
    except ValueError:
        at = None
    if at is None or at.tzinfo is None:
        raise InvalidInput(field, f"{text!r}: write an instant with its offset, as in {_INSTANT}")
    if at.year not in _YEARS:
        raise InvalidInput(field, f"{text!r}: the year must be from {_YEARS[0]} to {_YEARS[-1]}")
    return at.astimezone(UTC)


def _job_id(key: str) -> int | None:
    """The number of a job's public id; any other text stands for a job of its own."""
    if not key:
        return None
    try:
        return parse_id(Prefix.JOB, key)
    except InvalidInput:
        return stable_int(2**63, "key", key)


def _refuse(error: InvalidInput, *, as_object: bool) -> NoReturn:
    if as_object:
        typer.echo(json.dumps({"error": {"field": error.field, "reason": error.reason}}), err=True)
    else:
        typer.echo(f"Error in {error.field}: {error.reason}", err=True)
    raise typer.Exit(Exit.USAGE)
