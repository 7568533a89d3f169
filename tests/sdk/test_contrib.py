"""Parts of the integrations with web frameworks; `examples/test_web_frameworks` runs them with the frameworks."""

from contextlib import nullcontext
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured
from flask import Flask
from starlette.requests import HTTPConnection

from evertick import App, InvalidInput, Run
from evertick.contrib.django.project import url_of
from evertick.contrib.flask import Evertick
from evertick.contrib.inside import HandlersInside
from evertick.contrib.litestar import EvertickPlugin
from evertick.contrib.starlette import evertick_app, lifespan


@pytest.mark.parametrize(
    ("database", "url"),
    [
        ({"NAME": "shop"}, "postgresql:///shop"),
        ({"NAME": "shop", "USER": "u@x", "PASSWORD": "p:/?", "HOST": "db", "PORT": 5433},
         "postgresql://u%40x:p%3A%2F%3F@db:5433/shop"),
        ({"NAME": "shop", "USER": "u", "HOST": "/run/pg", "PORT": "5433"},
         "postgresql://u@/shop?host=%2Frun%2Fpg&port=5433"),
        ({"NAME": "shop", "HOST": "db", "OPTIONS": {"sslmode": "verify-full", "pool": True}},
         "postgresql://db/shop?sslmode=verify-full"),
    ],
)  # fmt: skip
def test_a_database_of_django_has_a_url(database: dict[str, Any], url: str) -> None:
    assert url_of(database) == url


def test_a_service_of_django_has_none() -> None:
    with pytest.raises(ImproperlyConfigured, match="database_url"):
        url_of({"NAME": "", "OPTIONS": {"service": "shop"}})


def test_wrong_options_are_refused_where_they_are_written() -> None:
    with pytest.raises(InvalidInput, match="must be one of everything, handlers, nothing, not 'worker'"):
        lifespan(App(), runs="worker")  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="not 'all'"):
        EvertickPlugin(App(), runs="all")  # type: ignore[arg-type]
    web = Flask("shop")
    web.config["EVERTICK"] = {"databse_url": "postgresql:///shop"}
    with pytest.raises(InvalidInput, match="did you mean 'database_url'"):
        Evertick(web)


def test_a_request_without_a_lifespan_says_what_is_missing() -> None:
    with pytest.raises(RuntimeError, match="lifespan=lifespan"):
        evertick_app(HTTPConnection({"type": "http"}))


def test_handlers_inside_of_a_context_keep_their_parameters() -> None:
    def send(run: Run, user: str) -> None: ...

    async def send_async(user: str) -> None: ...

    handlers = HandlersInside(nullcontext, nullcontext)
    handlers.add("send", send)
    handlers.add("send_async", send_async)
    assert [handlers[name].is_async for name in ("send", "send_async")] == [False, True]
    assert [list(handlers[name].binding.fields) for name in handlers] == [["user"], ["user"]]
    assert handlers["send"].binding.run_name == "run"
    with pytest.raises(InvalidInput, match="yields"):
        handlers.add("broken", lambda: (yield))
