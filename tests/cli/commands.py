"""Runs commands in this process, on the database of the test or over an API that serves it."""

import asyncio
import json
from collections.abc import Sequence
from typing import Any, Self

import click
from click.testing import CliRunner, Result

from evertick.cli.main import app


class Cli:
    """Runs commands with common options. In a thread, because each command has an event loop of its own."""

    def __init__(self, database_url: str) -> None:
        self.options: tuple[str, ...] = ("--database-url", database_url)
        self.environment: dict[str, str] = {}

    @classmethod
    def at(cls, *options: str, **environment: str) -> Self:
        """With these options and environment variables."""
        cli = cls("")
        cli.options, cli.environment = options, environment
        return cli

    async def __call__(self, *arguments: str, code: int = 0, stdin: str | None = None) -> str:
        """Run a command, check its exit code, and return its stdout, or its stderr if it fails."""
        result = await self.run(*arguments, stdin=stdin)
        assert result.exit_code == code, result.output
        return result.stdout if code == 0 else result.stderr

    async def run(self, *arguments: str, stdin: str | None = None) -> Result:
        words = [*arguments, *self.options]
        environment = {"COLUMNS": "400", **self.environment}  # so that no message wraps
        return await asyncio.to_thread(CliRunner().invoke, app, words, stdin, environment)

    async def json(self, *arguments: str, stdin: str | None = None) -> Any:
        return json.loads(await self(*arguments, "--json", stdin=stdin))


def unknown_words(arguments: Sequence[str]) -> set[str]:
    """The commands and options of a command line that do not exist. Values are not looked at."""
    command: Any = app
    rest = list(arguments)
    while rest and hasattr(command, "list_commands"):
        context, group, name = click.Context(command), command, rest.pop(0)
        if name in getattr(group, "later", {}):
            command = group.load(name)  # imported when it is called
            continue
        command = group.get_command(context, name) or group.get_command(context, "file")  # `jobs import FILE`
        if command is None:
            return {name} - _options_of(group)
    return {word.partition("=")[0] for word in rest if word.startswith("--")} - _options_of(command)


def _options_of(command: Any) -> set[str]:
    return {"--help"}.union(*((*each.opts, *each.secondary_opts) for each in command.params))
