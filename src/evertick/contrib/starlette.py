"""Starlette: an App that starts and stops with the web application, and is found by its requests."""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, TypeAlias

from starlette.requests import HTTPConnection

from evertick.contrib.lifespan import Runs, checked, running
from evertick.sdk.app import App

__all__ = ["evertick_app", "lifespan"]

_KEY = "evertick"
Lifespan: TypeAlias = Callable[[Any], AbstractAsyncContextManager[Mapping[str, Any] | None]]


def lifespan(
    app: App, *, runs: Runs = "everything", inner: Lifespan | None = None
) -> Callable[[Any], AbstractAsyncContextManager[Mapping[str, Any]]]:
    """The lifespan of a web application that has an App. `inner` is a lifespan of its own, inside of that."""
    checked(runs)

    @asynccontextmanager
    async def run(web: Any) -> AsyncIterator[Mapping[str, Any]]:
        async with running(app, runs):
            if inner is None:
                yield {_KEY: app}
            else:
                async with inner(web) as state:
                    yield {**(state or {}), _KEY: app}

    return run


def evertick_app(connection: HTTPConnection) -> App:
    """The App of the web application that a request or a websocket is for."""
    app: App | None = getattr(connection.state, _KEY, None)
    if app is None:
        raise RuntimeError("this application has no App: give it one by lifespan=lifespan(app)")
    return app
