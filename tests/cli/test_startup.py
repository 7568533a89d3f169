"""What the command imports before it knows what to do: nearly nothing, so that help and completion come at once."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Mapping

import pytest

from cli.commands import Cli
from evertick.cli.main import COMMANDS, app
from evertick.cli.signatures import first_sentence

SLOW = ("asyncio", "asyncpg", "aiohttp", "cryptography", "dateutil", "httpx", "pydantic", "typer", "uvicorn", "uvloop")
HEAVY = (*SLOW, "http.client", "msgspec", "rich.console", "socket", "tomllib")
OURS = ("evertick.client", "evertick.contract", "evertick.store", "evertick.usecases", "evertick.domain.schedule")
COMPLETION = {"_EVERTICK_COMPLETE": "bash_complete"}


def imported_by(*arguments: str, environment: Mapping[str, str] | None = None, code: int = 0) -> set[str]:
    """The modules that the command has imported when it ends."""
    script = (
        "import atexit, sys\n"
        "atexit.register(lambda: print(*sys.modules, file=sys.stderr))\n"
        "from evertick.cli.main import main\n"
        f"sys.argv[1:] = {list(arguments)!r}\n"
        "main()"
    )
    env = {**environment, "PYTHONPATH": os.environ.get("PYTHONPATH", "")} if environment else None
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, env=env)
    assert done.returncode == code, done.stderr
    return set(done.stderr.split())


@pytest.mark.parametrize("arguments", [("--version",), ("--help",)], ids=" ".join)
def test_the_version_and_the_help_import_no_command(arguments: tuple[str, ...]) -> None:
    found = imported_by(*arguments)
    assert [name for name in HEAVY if name in found] == []
    assert [name for name in found if name.startswith((*OURS, "evertick.cli.commands"))] == []


@pytest.mark.parametrize("words", ["evertick j", "evertick jobs l", "evertick jobs list --st"])
def test_completion_needs_no_client(words: str) -> None:
    found = imported_by(environment={**COMPLETION, "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))})
    assert [name for name in HEAVY if name in found] == []
    assert [name for name in found if name.startswith(OURS)] == []


@pytest.mark.parametrize("arguments", [("jobs", "--help"), ("jobs", "list", "--help")], ids=" ".join)
def test_the_help_of_a_command_needs_no_client(arguments: tuple[str, ...]) -> None:
    found = imported_by(*arguments)
    assert [name for name in HEAVY if name in found] == []
    assert [name for name in found if name.startswith(OURS)] == []


@pytest.mark.parametrize(
    "arguments",
    [("jobs", "list"), ("jobs", "list", "--json"), ("jobs", "show", "report"), ("runs", "list")],
    ids=" ".join,
)
async def test_a_simple_call_imports_what_it_needs(over_api: Cli, arguments: tuple[str, ...]) -> None:
    await over_api("jobs", "add", "report", "manual", "--handler", "report")
    found = await asyncio.to_thread(
        lambda: imported_by(*arguments, *over_api.options, environment=over_api.environment)
    )
    assert "evertick.client.plain_transport" in found
    assert [name for name in (*SLOW, "rich.console", "tomllib") if name in found] == []
    ours = ("evertick.store", "evertick.usecases", "evertick.runtime.loop", "evertick.contract.server")
    assert [name for name in found if name.startswith((*ours, "evertick.domain.schedule.cron"))] == []
    others = "evertick.contract.runs" if arguments[0] == "jobs" else "evertick.client.workers"
    assert others not in found
    assert "evertick.contract.jobs" not in found, "previews, verdicts and queries"


def test_over_tls_httpx_is_imported_without_its_own_command_line() -> None:
    found = imported_by(
        "jobs", "list", "--url", "https://127.0.0.1:1", code=3, environment={"EVERTICK_API_KEY": "evt_x"}
    )
    assert "httpx" in found
    assert "pygments" not in found, "which httpx would import for it"


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_has_the_first_sentence_of_each_command(name: str) -> None:
    assert first_sentence(app.load(name).help) == COMMANDS[name][1]
