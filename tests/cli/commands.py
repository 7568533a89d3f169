"""A command in this process, on a database of the test's own."""

import asyncio
import json
from typing import Any

from typer.testing import CliRunner

from evertick.cli.main import app


class Cli:
    """Runs commands on one database. In a thread: each has an event loop of its own."""

    def __init__(self, url: str) -> None:
        self._url = url

    async def __call__(self, *arguments: str, code: int = 0) -> str:
        """Run a command that ends with this exit code, and return what it says: its result, or why it failed."""
        result = await asyncio.to_thread(CliRunner().invoke, app, [*arguments, "--database-url", self._url])
        assert result.exit_code == code, result.output
        return result.stdout if code == 0 else result.stderr

    async def json(self, *arguments: str) -> Any:
        return json.loads(await self(*arguments, "--json"))
