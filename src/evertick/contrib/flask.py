"""Flask: an App that is an extension. Its handlers run in the application's context, and `flask evertick` has the
commands.
"""

import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import click
from flask import Flask
from flask.cli import ScriptInfo

from evertick.contrib.commands import run_command
from evertick.contrib.inside import HandlersInside
from evertick.contrib.options import checked
from evertick.domain.errors import InvalidInput
from evertick.sdk.app import App
from evertick.sdk.declarations import checked_schema

__all__ = ["Evertick"]

_KEY = "evertick"
_WORKER = "evertick.contrib.flask_worker:app"
_OPTIONS = ("database_url", "data_dir", "schema")


class Evertick(App):
    """An App with the arguments of App, and `init_app`. `EVERTICK` in the configuration says where its database is."""

    def __init__(self, web: Flask | None = None, **options: Any) -> None:
        super().__init__(**options)
        self._web: Flask | None = None
        self.declarations.handlers = HandlersInside(self._in_context, self._in_context_async)
        if web is not None:
            self.init_app(web)

    def init_app(self, web: Flask) -> None:
        options = checked(web.config.get("EVERTICK", {}), _OPTIONS, "EVERTICK")
        if options.get("database_url") and options.get("data_dir"):
            raise InvalidInput("EVERTICK", "has a database_url and a data_dir: which of them?")
        self._database_url = options.get("database_url", self._database_url)
        self._data_dir = Path(options["data_dir"]) if options.get("data_dir") else self._data_dir
        self._schema = checked_schema(options["schema"]) if options.get("schema") else self._schema
        self._web = web
        web.extensions[_KEY] = self
        web.cli.add_command(_command)

    @contextmanager
    def _in_context(self) -> Iterator[None]:
        if self._web is None:
            yield
        else:
            with self._web.app_context():
                yield

    @asynccontextmanager
    async def _in_context_async(self) -> AsyncIterator[None]:
        with self._in_context():
            yield


def app_of(web: Flask) -> Evertick:
    """The App that was given to a Flask application."""
    app = web.extensions.get(_KEY)
    if not isinstance(app, Evertick):
        raise InvalidInput("app", "this application has no Evertick: call init_app")
    return app


@click.command(
    "evertick",
    short_help="Commands of Evertick: worker, migrate, jobs, runs, …",
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
    add_help_option=False,
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.pass_obj
def _command(info: ScriptInfo, arguments: tuple[str, ...]) -> None:
    app = app_of(info.load_app())
    if info.app_import_path is not None:
        os.environ["FLASK_APP"] = info.app_import_path  # for the processes of a worker
    run_command(app, _WORKER, arguments, "flask evertick")
