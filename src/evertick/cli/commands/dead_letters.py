"""`evertick dead-letters`: runs that have used up their attempts, until they are replayed or dismissed."""

from operator import attrgetter
from typing import Annotated

import click

from evertick.cli.backends import LetterListFilter
from evertick.cli.connection import Backend, ConnectionOptions, call, connection_options
from evertick.cli.options import EXAMPLE_INSTANT, Limit, optional, parse_instant
from evertick.cli.output import print_listing, print_result
from evertick.cli.signatures import Argument, CommandGroup, Option
from evertick.contract.runs import DEFAULT_RATE, Replaying

app = CommandGroup(help="List, replay and dismiss dead letters.")

JobOption = Annotated[str | None, Option("--job", metavar="JOB", help="Only this job's, by id or by name.")]
RUNS_HELP = "Ids of runs, as `dead-letters list` shows them."


@app.add("list")
@connection_options
def list_dead_letters(connection: ConnectionOptions, *, job: JobOption = None, limit: Limit = 50) -> None:
    """List dead letters, the newest first.

    Example

      evertick dead-letters list --job send-weekly-report
    """
    print_listing(
        call(connection, lambda backend: backend.list_dead_letters(job, limit)),
        ("died (UTC)", "run", "job", "attempts", "reason", "error"),
        attrgetter("died_at", "run_id", "name", "attempt", "reason", "error"),
        empty="No dead letters.",
        as_json=connection.as_json,
    )


@app.add()
@connection_options
def replay(
    connection: ConnectionOptions,
    runs: Annotated[list[str] | None, Argument(metavar="RUN...", help=RUNS_HELP)] = None,
    *,
    every: Annotated[bool, Option("--all", help="Replay all.")] = False,
    job: JobOption = None,
    queue: Annotated[str | None, optional("--queue", "Only of jobs of this queue.", metavar="NAME")] = None,
    error: Annotated[str | None, optional("--error", "Only with this in their error.", metavar="TEXT")] = None,
    label: Annotated[str | None, optional("--label", "Only of jobs with this label.", metavar="NAME:VALUE")] = None,
    from_at: Annotated[
        str | None,
        optional("--from", f"Only those that died from this on, as in {EXAMPLE_INSTANT}.", metavar="INSTANT"),
    ] = None,
    to_at: Annotated[str | None, optional("--to", "Only those that died before this.", metavar="INSTANT")] = None,
    rate: Annotated[
        float, Option("--rate", metavar="N", min=0.01, max=1000, help="How many start each second.")
    ] = DEFAULT_RATE,
    background: Annotated[bool, Option("--background", help="Leave it to a replay: see `evertick replays`.")] = False,
) -> None:
    """Run dead letters again, each as a new run with the same payload.

    What is too much for one request goes on as a replay, which `evertick replays` shows and cancels.

    Examples

      evertick dead-letters replay run_…

      evertick dead-letters replay --job send-weekly-report

      evertick dead-letters replay --error "connection refused" --rate 5 --background
    """
    filters = LetterListFilter(job, queue, error, label, parse_instant("--from", from_at), parse_instant("--to", to_at))
    if bool(runs) == (every or background or filters != LetterListFilter()):
        raise click.BadParameter("give the ids of runs, or --all or a filter")

    async def work(backend: Backend) -> Replaying:
        if not runs:
            return await backend.replay_dead_letters(filters, rate, background=background)
        replayed = tuple([await backend.replay_dead_letter(run) for run in runs or ()])
        return Replaying(replayed=len(replayed), run_ids=replayed, last_due_at=None, has_more=False)

    result = call(connection, work)
    runs_made = [{"run_id": run_id} for run_id in result.run_ids]
    if background:
        print_result({"replay_id": result.replay_id}, f"{result.replay_id} replays them.", as_json=connection.as_json)
        return
    print_result(runs_made, f"Replayed {result.replayed:,}.", as_json=connection.as_json)
    if result.has_more:  # on stderr, so that scripts read only the result
        click.echo(f"There are more: {result.replay_id} replays them.", err=True)


@app.add()
@connection_options
def dismiss(
    connection: ConnectionOptions, runs: Annotated[list[str], Argument(metavar="RUN...", help=RUNS_HELP)]
) -> None:
    """Remove dead letters without running them again. The runs stay in the history.

    Example

      evertick dead-letters dismiss run_…
    """

    async def work(backend: Backend) -> None:
        for run in runs:
            await backend.dismiss_dead_letter(run)

    call(connection, work)
    print_result([{"run_id": run_id} for run_id in runs], f"Dismissed {len(runs):,}.", as_json=connection.as_json)
