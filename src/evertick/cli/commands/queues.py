"""`evertick queues` and `evertick workers`: the queues, their limits, how full they are, and who serves them."""

from operator import attrgetter
from typing import Annotated

from evertick.cli.connection import ConnectionOptions, call, connection_options
from evertick.cli.options import Limit, limit_option, optional, read_limits
from evertick.cli.output import print_fields, print_json, print_listing
from evertick.cli.signatures import Argument, CommandGroup
from evertick.contract.workers import Queue, Worker
from evertick.domain.states import WorkerRole

app = CommandGroup(help="List and limit queues.")


@app.add("list")
@connection_options
def list_queues(connection: ConnectionOptions, *, limit: Limit = 50) -> None:
    """List queues by name: their limits, how full they are, how many workers serve them, and which handlers none does.

    Examples

      evertick queues list

      evertick queues list --json | jq '.[] | {name, handlers}'
    """
    print_listing(
        call(connection, lambda backend: backend.list_queues(limit)),
        (*_LIMITS, "ready", "oldest due", "full", "workers", "handlers", "nobody serves"),
        _row_of,
        empty="No queues.",
        as_json=connection.as_json,
    )


_LIMITS = ("queue", "max running", "rate limit", "rate burst", "max ready")
_limits_of = attrgetter("name", "max_running", "rate_limit", "rate_burst", "max_ready")


def _row_of(queue: Queue) -> tuple[object, ...]:
    served = ", ".join(each.handler for each in queue.handlers if each.workers)
    unserved = ", ".join(queue.unserved)
    return (
        *(*_limits_of(queue), queue.ready, queue.oldest_due_at, queue.is_full, queue.workers),
        *(served or None, unserved or None),
    )


@connection_options
def workers(connection: ConnectionOptions, *, limit: Limit = 50) -> None:
    """List workers and dispatchers by name: which queues and handlers each serves, and its last heartbeat.

    Examples

      evertick workers

      evertick workers --json | jq -r '.[] | select(.is_alive) | .worker_id'
    """
    print_listing(
        call(connection, lambda backend: backend.list_workers(limit)),
        ("worker", "role", "alive", "version", "last heartbeat (UTC)", "queues", "handlers"),
        _worker_row,
        empty="No workers.",
        as_json=connection.as_json,
    )


def _worker_row(worker: Worker) -> tuple[object, ...]:
    names = {name for each in worker.queues for name in each.handlers or ()}
    is_any = any(each.handlers is None for each in worker.queues)
    handlers = None if worker.role == WorkerRole.DISPATCHER else "any" if is_any else ", ".join(sorted(names))
    queues = ", ".join(each.queue for each in worker.queues)
    return worker.worker_id, worker.role, worker.is_alive, worker.version, worker.seen_at, queues, handlers


@app.add()
@connection_options
def edit(
    connection: ConnectionOptions,
    queue: Annotated[str, Argument(metavar="QUEUE", help="Its name.")],
    *,
    max_running: Annotated[str | None, limit_option("--max-running", "How many run at once, in all workers.")] = None,
    rate_limit: Annotated[
        str | None, limit_option("--rate-limit", "How many start per second, in all workers.")
    ] = None,
    rate_burst: Annotated[
        str | None, limit_option("--rate-burst", "How many of them start at once after a pause.")
    ] = None,
    max_ready: Annotated[
        str | None,
        optional("--max-ready", "How many runs may wait. While so many do, its jobs do not fire.", metavar="NUMBER"),
    ] = None,
) -> None:
    """Limit how many runs of a queue run at once, start per second, or wait. What is left out stays as it is.

    Examples

      evertick queues edit reports --max-running 5

      evertick queues edit reports --rate-limit 0.5 --max-running none

      evertick queues edit reports --max-ready 10000
    """
    limits = {"max_running": max_running, "rate_limit": rate_limit, "rate_burst": rate_burst, "max_ready": max_ready}
    changes = read_limits(**limits)
    changed = call(connection, lambda backend: backend.edit_queue(queue, changes))
    if connection.as_json:
        print_json(changed)
    else:
        print_fields(zip(_LIMITS, _limits_of(changed), strict=True))
