"""`evertick archive`: which days are archived; checks and makes exports, and turns the archive off."""

from datetime import UTC, date, datetime, timedelta
from operator import itemgetter
from typing import Annotated, Any

import click

from evertick.cli.backends import ACTOR, Listing
from evertick.cli.connection import DEFAULT_TENANT, DatabaseOptions, call_database, database_options
from evertick.cli.errors import Exit
from evertick.cli.options import AsJson, Limit
from evertick.cli.output import print_document, print_listing, print_result
from evertick.cli.signatures import Argument, CommandGroup
from evertick.usecases import archive as archives, audit
from evertick.usecases.context import TenantContext, unit_of_work

app = CommandGroup(help="List, check and export days of the archive.")


def _day(text: str) -> date:
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise click.BadParameter("must be a day, as in 2026-03-07") from None


Day = Annotated[str, Argument(metavar="DAY", help="Day in UTC, as in 2026-03-07.")]


@app.add("list")
@database_options
def list_days(database: DatabaseOptions, *, limit: Limit = 100, as_json: AsJson = False) -> None:
    """List archived days, the newest first: dropped ones are read from the archive, others from the database.

    Example

      evertick archive list
    """

    async def work(operator: TenantContext) -> Listing[Any]:
        found = [day._asdict() for day in await archives.list_days(operator.pool, limit + 1)]
        return Listing(found[:limit], has_more=len(found) > limit)

    print_listing(
        call_database(database, DEFAULT_TENANT, work),
        ("day", "part", "state", "rows", "bytes", "files", "verified", "dropped"),
        itemgetter("day", "part", "state", "rows", "bytes", "files", "verified_at", "dropped_at"),
        empty="No day is archived.",
        as_json=as_json,
    )


@app.add()
@database_options
def verify(database: DatabaseOptions, day: Day, *, as_json: AsJson = False) -> None:
    """Read the files of a day again, and compare rows and digests with those of the export.

    Exit code 1 if a file is missing or damaged.

    Example

      evertick archive verify 2026-03-07
    """
    wanted = _day(day)

    async def work(operator: TenantContext) -> archives.VerifiedDay:
        return await archives.verify(operator, wanted)

    found = call_database(database, DEFAULT_TENANT, work, uses_archive=True)
    print_document(found._asdict(), as_json=as_json)
    if found.damaged:
        raise click.exceptions.Exit(Exit.FAILED)


@app.add()
@database_options
def export(database: DatabaseOptions, day: Day, *, as_json: AsJson = False) -> None:
    """Export a day now and verify it. It stays in the database until it is older than history is kept.

    Example

      evertick archive export 2026-03-07
    """
    wanted = _day(day)
    if wanted >= (datetime.now(UTC) - timedelta(days=1)).date():
        raise click.BadParameter("must be a day before yesterday: runs of later ones may go on")

    async def work(operator: TenantContext) -> archives.VerifiedDay:
        return await archives.export(operator, wanted)

    print_document(call_database(database, DEFAULT_TENANT, work, uses_archive=True)._asdict(), as_json=as_json)


@app.add()
@database_options
def off(database: DatabaseOptions, *, as_json: AsJson = False) -> None:
    """Drop days without archiving them from now on. Remove EVERTICK_ARCHIVE_URL before: a janitor turns it on again.

    Example

      evertick archive off
    """

    async def work(operator: TenantContext) -> bool:
        async with unit_of_work(operator) as unit:
            is_changed = await archives.turn_off(unit.pool)
            await audit.record(unit, ACTOR, "turn_archive_off")
            return is_changed

    is_changed = call_database(database, DEFAULT_TENANT, work)
    text = "Days are dropped without being archived." if is_changed else "The archive was off already."
    print_result({"is_on": False}, text, as_json=as_json)
