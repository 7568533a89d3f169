"""What an app runs inside of a web application, while that runs."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Literal, TypeAlias, get_args

from evertick.domain.errors import InvalidInput
from evertick.sdk.app import App

Runs: TypeAlias = Literal["everything", "handlers", "nothing"]
"""`everything` schedules and runs handlers, `handlers` does the latter alone, `nothing` submits only."""


def checked(runs: str) -> None:
    """Refuse an unknown word where it is written, not when the application starts."""
    if runs not in get_args(Runs):
        raise InvalidInput("runs", f"must be one of {', '.join(get_args(Runs))}, not {runs!r}")


@asynccontextmanager
async def running(app: App, runs: Runs) -> AsyncIterator[None]:
    """The app, connected and at work, for the duration of the block."""
    if runs == "nothing":
        async with app:
            yield
    else:
        async with app.running(schedules=runs == "everything"):
            yield
