"""`evertick top`: the overview as a page in the terminal that is drawn again and again."""

import asyncio
import contextlib
from typing import Annotated

from rich.console import Console
from rich.live import Live

from evertick.cli.backends import OverviewFigures
from evertick.cli.connection import Backend, ConnectionOptions, call, connection_options
from evertick.cli.errors import Exit, error_lines, exit_code_of
from evertick.cli.output import print_json
from evertick.cli.signatures import Option
from evertick.cli.tables import plain_console
from evertick.cli.top_page import MAX_QUEUES, MAX_RUNS, TopPage
from evertick.domain.errors import EvertickError
from evertick.runtime.loop import diagnose_database


@connection_options
def top(
    connection: ConnectionOptions,
    *,
    interval: Annotated[
        float, Option("--interval", "-i", metavar="SECONDS", min=0.2, max=3600, help="Between two looks.")
    ] = 2.0,
    once: Annotated[bool, Option("--once", help="Print the page once; so does a pipe.")] = False,
) -> None:
    """Show what the engine does, live: rates, lag, what needs attention, queues, nodes, runs, the next ticks.

    Ctrl-C ends it. While the server or database cannot be reached, the last picture stays.

    Examples

      evertick top

      evertick top --interval 10 --url https://evertick.internal

      evertick top --once --json
    """
    if connection.as_json:
        print_json(call(connection, _look)._asdict())
        return
    page = TopPage()
    if once or not Console().is_terminal:
        page.figures = call(connection, _look)
        plain_console().print(page)
        return
    with contextlib.suppress(KeyboardInterrupt):
        call(connection, lambda backend: _watch(backend, page, interval), waits=True)


async def _look(backend: Backend) -> OverviewFigures:
    return await backend.overview(MAX_QUEUES, MAX_RUNS)


async def _watch(backend: Backend, page: TopPage, interval: float) -> None:
    """Look again and again, until the process is interrupted."""
    page.figures = await _look(backend)  # an error at the first look ends the command
    # Drawn again each second, also between two looks: the terminal may have another size.
    with Live(page, screen=True, refresh_per_second=1, transient=True) as live:
        while True:
            await asyncio.sleep(interval)
            try:
                page.figures = await _look(backend)
                page.fault = None
            except Exception as error:
                page.fault = _fault(error)
                if page.fault is None:
                    raise
            live.refresh()


def _fault(error: Exception) -> str | None:
    """Why a look failed, if the next one may succeed."""
    if isinstance(error, EvertickError):
        return error_lines(error)[0] if exit_code_of(error) is Exit.UNREACHABLE else None
    return None if diagnose_database(error) is None else f"{type(error).__name__}: {error}"
