"""The pytest plugin: the fixtures `evertick_app` and `clock`, which run an app on a virtual clock.

pytest loads it wherever Evertick is installed. So it imports nothing of Evertick until a test asks for a fixture.
"""

import functools
import inspect
import pkgutil
from collections.abc import Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from evertick.sdk.app import App
    from evertick.testing import SyncVirtualTime, VirtualTime

START = "2026-01-01T00:00:00+00:00"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini("evertick_app", "The App that the fixture evertick_app returns: MODULE:APP, as in shop.jobs:app.")
    parser.addini("evertick_start", f"Where the fixture clock begins, by default {START}.", default=START)
    parser.addini(
        "evertick_database_url",
        "An empty database for the fixture clock. By default each test has its own on an embedded server.",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "evertick(start): where the fixture clock of Evertick begins")


@pytest.fixture
def evertick_app(request: pytest.FixtureRequest) -> "App":
    """The app of the ini option `evertick_app`. A fixture of the same name in conftest.py replaces it."""
    path = request.config.getini("evertick_app")
    if not path:
        pytest.fail("say which App: evertick_app = MODULE:APP in the options of pytest, or a fixture", pytrace=False)
    from evertick.sdk.app import App  # noqa: PLC0415 - only for tests that ask for it

    app = pkgutil.resolve_name(path)
    if not isinstance(app, App):
        pytest.fail(f"evertick_app = {path}: that is a {type(app).__qualname__}, not an App", pytrace=False)
    return app


@pytest.fixture
def clock(request: pytest.FixtureRequest, evertick_app: "App") -> "Iterator[SyncVirtualTime | VirtualTime]":
    """The app on a virtual clock. In an async test its methods are awaited."""
    from evertick.testing import virtual_sync  # noqa: PLC0415 - as above

    start, url = _start(request), request.config.getini("evertick_database_url") or None
    if inspect.iscoroutinefunction(request.function):
        yield _run_test_on_clock(request, evertick_app, start, url)
        return
    with virtual_sync(evertick_app, start, database_url=url) as time:
        yield time


def _start(request: pytest.FixtureRequest) -> datetime:
    marker = request.node.get_closest_marker("evertick")
    start = request.config.getini("evertick_start")
    if marker is not None:
        start = (*marker.args, marker.kwargs.get("start", start))[0]
    return start if isinstance(start, datetime) else datetime.fromisoformat(start)


def _run_test_on_clock(request: pytest.FixtureRequest, app: "App", start: datetime, url: str | None) -> Any:
    """The clock is opened inside of the test: on its event loop, whichever plugin runs that, and for its time only."""
    from evertick.testing import virtual  # noqa: PLC0415 - as above

    test = request.node.obj

    @functools.wraps(test)
    async def on_clock(**arguments: Any) -> None:
        async with virtual(app, start, database_url=url) as time:
            await test(**{name: time if value is closed else value for name, value in arguments.items()})

    closed = _ClosedClock()
    request.node.obj = on_clock
    request.addfinalizer(lambda: setattr(request.node, "obj", test))  # for plugins that run a test again
    return closed


class _ClosedClock:
    """What other fixtures of an async test get."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(f"clock.{name}: in an async test the clock runs in the test itself, not in its fixtures")
