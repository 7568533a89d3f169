"""Runs commands in this process, on the database of the test or over an API that serves it."""

import asyncio
import json
from typing import Any, Self

from typer.testing import CliRunner, Result

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
