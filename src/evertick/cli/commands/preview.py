"""`evertick preview`: the next fire times of a schedule. Needs no server."""

import json
from datetime import UTC, datetime, timedelta
from typing import Annotated, NamedTuple, NoReturn

import click

from evertick.cli.errors import Exit
from evertick.cli.options import EXAMPLE_INSTANT, AsJson, instant_or_none, option_group
from evertick.cli.output import print_json
from evertick.cli.preview_output import document_of, print_table
from evertick.cli.signatures import Argument, Option
from evertick.domain.errors import InvalidInput
from evertick.domain.ids import Prefix, parse_id
from evertick.domain.limits import PREVIEW_MAX_ROWS
from evertick.domain.policies import DST_PRESETS, DstGap, DstOverlap
from evertick.domain.schedule.preview import SchedulePreview, as_new_job, preview as compute_preview
from evertick.domain.schedule.schedule import Schedule
from evertick.domain.stable_hash import stable_int

_YEARS = range(1900, 9001)
"""Years of instants on the command line: no time zone moves one of these beyond the years 1 to 9999."""


class PreviewOptions(NamedTuple):
    """All options of the command."""

    timezone: Annotated[str, Option("--timezone", "-z", help="IANA name of the time zone.")] = "UTC"
    after: Annotated[
        str | None,
        Option(metavar="INSTANT", help=f"Fire times after this, as in {EXAMPLE_INSTANT}. [default: now]"),
    ] = None
    rows: Annotated[int, Option("--count", "-n", min=1, max=PREVIEW_MAX_ROWS, help="Number of fire times.")] = 10
    dst_gap: Annotated[DstGap | None, Option(help="What to do at a local time that DST skips. [default: catch_up]")] = (
        None
    )
    dst_overlap: Annotated[
        DstOverlap | None, Option(help="Which run of a local time that DST repeats. [default: first]")
    ] = None
    preset: Annotated[str, Option(help=f"DST behaviour of another scheduler: {', '.join(DST_PRESETS)}.")] = "evertick"
    start_at: Annotated[str | None, Option(metavar="INSTANT", help="No fire time before this.")] = None
    end_at: Annotated[str | None, Option(metavar="INSTANT", help="No fire time after this.")] = None
    key: Annotated[str, Option(help="The job's id, which decides H and jitter.")] = ""
    jitter_seconds: Annotated[int, Option(min=0, max=86_400, help="Jitter window of the job.")] = 0
    as_json: AsJson = False


@option_group(PreviewOptions)
def preview(
    options: PreviewOptions,
    schedule: Annotated[
        str,
        Argument(help="Cron, @daily, 'every 5m', R/…, RRULE:…, an instant, now, 'in 90s' or manual."),
    ],
) -> None:
    """Show the next fire times of a schedule in its time zone and in UTC, a description, and the effects of DST.

    Examples

      evertick preview "30 2 * * *" --timezone America/New_York --after 2026-03-07T00:00:00Z

      evertick preview "0 9 * * MON#1" -z Europe/Berlin -n 12 --preset quartz

      evertick preview "RRULE:FREQ=MONTHLY;BYDAY=-1FR;BYHOUR=17" --json
    """
    try:
        result = _compute(schedule, options)
    except InvalidInput as error:
        _exit_with(error, as_json=options.as_json)
    except OverflowError:  # the time zone moves an instant of the schedule beyond the years 1 to 9999
        _exit_with(InvalidInput("schedule", "a date in it is beyond the calendar"), as_json=options.as_json)
    if options.as_json:
        print_json(document_of(result))
    else:
        print_table(result, options.rows)


def _compute(text: str, options: PreviewOptions) -> SchedulePreview:
    """The preview of the schedule as a job that is created now."""
    gap, overlap = _preset(options.preset)
    dst = options.dst_gap or gap, options.dst_overlap or overlap
    from_at = _instant("after", options.after) or datetime.now(UTC).replace(microsecond=0)
    window = _instant("start_at", options.start_at), _instant("end_at", options.end_at)

    def build(anchor_at: datetime | None) -> Schedule:
        return Schedule(text, options.timezone, *dst, *window, options.key, anchor_at=anchor_at)

    jitter = timedelta(seconds=options.jitter_seconds)
    job_id = _job_id(options.key)
    return compute_preview(as_new_job(build, from_at), from_at, options.rows, jitter=jitter, job_id=job_id)


def _preset(name: str) -> tuple[DstGap, DstOverlap]:
    if name not in DST_PRESETS:
        raise InvalidInput("preset", f"{name!r} is not one of {', '.join(DST_PRESETS)}")
    return DST_PRESETS[name]


def _instant(field: str, text: str | None) -> datetime | None:
    if text is None:
        return None
    at = instant_or_none(text)
    if at is None:
        raise InvalidInput(field, f"{text!r}: write an instant with its offset, as in {EXAMPLE_INSTANT}")
    if at.year not in _YEARS:
        raise InvalidInput(field, f"{text!r}: the year must be from {_YEARS[0]} to {_YEARS[-1]}")
    return at.astimezone(UTC)


def _job_id(key: str) -> int | None:
    """The number in a job's public id, or a number made from any other text."""
    if not key:
        return None
    try:
        return parse_id(Prefix.JOB, key)
    except InvalidInput:
        return stable_int(2**63, "key", key)


def _exit_with(error: InvalidInput, *, as_json: bool) -> NoReturn:
    if as_json:
        click.echo(json.dumps({"error": {"field": error.field, "reason": error.reason}}), err=True)
    else:
        click.echo(f"Error in {error.field}: {error.reason}", err=True)
    raise click.exceptions.Exit(Exit.USAGE)
