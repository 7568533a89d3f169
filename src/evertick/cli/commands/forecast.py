"""`evertick forecast`: firings to come as a heat strip, the hottest minutes, and the jitter that would lower them."""

from typing import Annotated

import click
from rich.console import Console
from rich.status import Status

from evertick.cli.backends import ForecastFilter
from evertick.cli.connection import Backend, ConnectionOptions, call, connection_options
from evertick.cli.forecast_output import print_advice, print_forecast, print_smear, print_smears
from evertick.cli.options import EXAMPLE_INSTANT, optional, parse_instant, parse_pairs
from evertick.cli.output import print_json, print_line
from evertick.cli.signatures import Argument, Option
from evertick.contract.forecast import MAX_HOTTEST, Forecast, ForecastAdvice, ForecastHorizon, Smear

MAX_SHOWN_SMEARS = 20


@connection_options
def forecast(
    connection: ConnectionOptions,
    horizon: Annotated[
        ForecastHorizon, Argument(metavar="[24h|30d]", help="A day in minutes, or 30 days in hours.")
    ] = ForecastHorizon.DAY,
    *,
    from_at: Annotated[
        str | None, optional("--from", f"The beginning, as in {EXAMPLE_INSTANT}.", metavar="INSTANT")
    ] = None,
    to_at: Annotated[str | None, optional("--to", "The end.", metavar="INSTANT")] = None,
    bucket: Annotated[
        int | None, optional("--bucket", "Seconds that are counted together.", metavar="N", min=60)
    ] = None,
    label: Annotated[
        list[str] | None, optional("--label", "Only of jobs with this label.", metavar="NAME:VALUE")
    ] = None,
    queue: Annotated[str | None, optional("--queue", "Only of jobs of this queue.", metavar="NAME")] = None,
    top: Annotated[int, Option("--top", min=0, max=MAX_HOTTEST, help="How many of the fullest to explain.")] = 5,
    all_tenants: Annotated[bool, Option("--all-tenants", help="The jobs of all tenants.")] = False,
    advice: Annotated[bool, Option("--advice", help="Ask which jobs should get jitter.")] = False,
    apply: Annotated[bool, Option("--apply", help="Give these jobs the jitter that is advised.")] = False,
    yes: Annotated[bool, Option("--yes", "-y", help="Apply without asking.")] = False,
    undo: Annotated[
        str | None, optional("--undo", "Take the jitter of this smear back; `last`: of the latest.", metavar="SMEAR")
    ] = None,
    smears: Annotated[bool, Option("--smears", help="List what was applied and undone.")] = False,
) -> None:
    """Show how many firings each minute or hour to come will have, and which jobs make the fullest.

    Examples

      evertick forecast

      evertick forecast 30d --label team:billing

      evertick forecast --apply

      evertick forecast --undo last
    """
    if sum((advice, apply, undo is not None, smears)) > 1:
        raise click.BadParameter("use one of --advice, --apply, --undo and --smears")
    labels = parse_pairs("--label", label or (), ":")
    if undo is not None:
        _print_smear(call(connection, lambda backend: _undo(backend, undo), waits=True), connection)
    elif smears:
        _print_smears(connection)
    elif advice or apply:
        _advise(connection, labels, queue, apply=apply, yes=yes)
    else:
        filters = ForecastFilter(
            horizon,
            parse_instant("--from", from_at),
            parse_instant("--to", to_at),
            bucket,
            labels,
            queue,
            top,
            all_tenants,
        )
        _print(call(connection, lambda backend: backend.forecast(filters)), connection)


def _print(found: Forecast, connection: ConnectionOptions) -> None:
    if connection.as_json:
        print_json(found)
    else:
        print_forecast(found)


def _advise(
    connection: ConnectionOptions, labels: dict[str, str], queue: str | None, *, apply: bool, yes: bool
) -> None:
    found: ForecastAdvice = call(connection, lambda backend: backend.advise(labels, queue))
    if not apply or found.jitter_seconds is None:
        if connection.as_json:
            print_json(found)
        else:
            print_advice(found)
        return
    if not connection.as_json:
        print_advice(found)
    if not yes:
        click.confirm(f"Change {found.jobs:,} jobs?", abort=True, err=True)

    async def work(backend: Backend) -> Smear:
        started = await backend.apply_advice(found, labels, queue)
        return await _finish(backend, started)

    _print_smear(call(connection, work, waits=True), connection)


async def _undo(backend: Backend, smear: str) -> Smear:
    if smear == "last":
        newest = (await backend.list_smears(1)).items
        if not newest:
            raise click.BadParameter("there is no smear to undo")
        smear = newest[0].smear_id
    return await _finish(backend, await backend.undo_smear(smear))


async def _finish(backend: Backend, smear: Smear) -> Smear:
    """Wait until a smear is worked off, and show its progress if stderr is a terminal."""
    with Status("", console=Console(stderr=True)) as status:

        def show(now: Smear) -> None:
            done = now.undone + now.kept if now.status == "undoing" else now.changed + now.skipped
            status.update(f"{now.smear_id}: {done:,} of {now.jobs:,} jobs")

        return await backend.finish_smear(smear.smear_id, show)


def _print_smear(smear: Smear, connection: ConnectionOptions) -> None:
    if connection.as_json:
        print_json(smear)
    else:
        print_smear(smear)


def _print_smears(connection: ConnectionOptions) -> None:
    found = call(connection, lambda backend: backend.list_smears(MAX_SHOWN_SMEARS))
    if connection.as_json:
        print_json(found.items)
    else:
        print_smears(found.items)
    if found.has_more:
        print_line("There are more.", err=True)
