"""A command in this process, on a database of the test's own or over an API that serves it."""

import asyncio
import json
from typing import Any, Self

from typer.testing import CliRunner, Result

from evertick.cli.main import app


class Cli:
    """Runs commands at one place, which the options name. In a thread: each has an event loop of its own."""

    def __init__(self, database_url: str) -> None:
        self.options: tuple[str, ...] = ("--database-url", database_url)
        self.environment: dict[str, str] = {}

    @classmethod
    def at(cls, *options: str, **environment: str) -> Self:
        """At the place that these options, and variables of the environment, name."""
        cli = cls("")
        cli.options, cli.environment = options, environment
        return cli

    async def __call__(self, *arguments: str, code: int = 0, given: str | None = None) -> str:
        """Run a command that ends with this exit code, and return what it says: its result, or why it failed."""
        result = await self.run(*arguments, given=given)
        assert result.exit_code == code, result.output
        return result.stdout if code == 0 else result.stderr

    async def run(self, *arguments: str, given: str | None = None) -> Result:
        words = [*arguments, *self.options]
        return await asyncio.to_thread(CliRunner().invoke, app, words, given, self.environment)

    async def json(self, *arguments: str, given: str | None = None) -> Any:
        return json.loads(await self(*arguments, "--json", given=given))
