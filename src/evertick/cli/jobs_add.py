"""`evertick jobs add`: makes a job, or replaces the one of its name."""

from typing import Annotated, Any

import typer

from evertick.cli.parsing import parse_fields, parse_json, parse_pairs
from evertick.cli.options import AsJson
from evertick.cli.output import print_json, print_line, utc
from evertick.cli.connection import ConnectionOptions, call, connection_options
from evertick.cli.backend import Backend
from evertick.contract.job import Job


@connection_options
def add(
    place: ConnectionOptions,
    name: Annotated[str, typer.Argument(help="Unique among the tenant's jobs.")],
    schedule: Annotated[
        str, typer.Argument(help="Cron, @daily, 'every 5m', RRULE:…, an instant, now, 'in 90s' or manual.")
    ],
    *,
    handler: Annotated[str | None, typer.Option(metavar="NAME", help="Which handler of the workers runs it.")] = None,
    queue: Annotated[str | None, typer.Option(metavar="NAME", help="From which queue. [dim](default)[/dim]")] = None,
    target_url: Annotated[
        str | None, typer.Option("--target-url", metavar="URL", help="Or: where it is delivered by HTTP.")
    ] = None,
    timezone: Annotated[str | None, typer.Option("--timezone", "-z", metavar="ZONE", help="IANA name.")] = None,
    payload: Annotated[str | None, typer.Option(metavar="JSON", help="What each run is given.")] = None,
    label: Annotated[list[str] | None, typer.Option(metavar="NAME:VALUE", help="As often as wanted.")] = None,
    fields: Annotated[
        list[str] | None, typer.Option("--set", metavar="FIELD=VALUE", help="Any other field of a job.")
    ] = None,
    replace: Annotated[bool, typer.Option("--replace", help="Replace the job of this name, if there is one.")] = False,
    as_json: AsJson = False,
) -> None:
    """Add a job that a worker's handler runs, or that is delivered to a URL.

    [bold]Examples[/bold]

      evertick jobs add refresh "*/5 * * * *" --handler refresh

      evertick jobs add invoices "0 9 1 * *" -z Europe/Paris --handler send_invoices --queue billing --set max_retries=5

      evertick jobs add report "0 9 * * 1" --target-url https://example.com/hooks/report --payload '{"type": "weekly"}'
    """
    wanted: dict[str, Any] = {"name": name, "schedule": schedule, "target": target_of(handler, queue, target_url)}
    if timezone is not None:
        wanted["timezone"] = timezone
    if payload is not None:
        wanted["payload"] = parse_json("--payload", payload)
    if label:
        wanted["labels"] = parse_pairs("--label", label, ":")
    wanted |= parse_fields("--set", fields or ())

    async def work(service: Backend) -> Job:
        return await (service.put_job(name, wanted) if replace else service.add_job(wanted))

    job = call(place, work)
    if as_json:
        print_json(job)
    else:
        first = f"first run at {utc(job.next_run_at)}" if job.next_run_at else "runs when it is triggered"
        print_line(f"{job.name} is {job.job_id}: {first}.")


def target_of(handler: str | None, queue: str | None, url: str | None) -> dict[str, str]:
    if (handler is None) == (url is None):
        raise typer.BadParameter("say --handler or --target-url, and not both")
    if url is not None:
        if queue is not None:
            raise typer.BadParameter("--queue goes with --handler")
        return {"type": "http", "url": url}
    assert handler is not None
    return {"type": "worker", "handler": handler, **({} if queue is None else {"queue": queue})}
