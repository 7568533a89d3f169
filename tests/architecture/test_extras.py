"""What `pip install evertick` is enough for: the client, the remote worker, the receiver kit and the command line over
HTTP, without the server.
"""

import asyncio
import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from evertick.client import AsyncClient
from evertick.domain.access import KeyRole
from evertick.runtime.extras import SERVER_PACKAGES
from sdk.served import served, worker_target

ROOT = Path(__file__).parents[2]
SECONDS = 120

BLOCK = f"""
import importlib.abc, sys

class Blocked(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {sorted(SERVER_PACKAGES)}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Blocked())
"""
"""Makes a process believe that the server's packages are not installed."""


SHOP = """
from evertick import App

app = App(name="shop")


@app.handler("greet")
async def greet(run):
    pass
"""


def run(code: str, environment: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **(environment or {})},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )


def test_the_client_and_the_remote_worker_load_nothing_of_the_server() -> None:
    code = """
import sys
from evertick import App, AsyncClient, Client, RetryLater, Run, Schedule, Worker, inbox, receive
import evertick.inbox, evertick.receive, evertick.sdk.webhooks
print(sorted({name.partition(".")[0] for name in sys.modules}))
"""
    done = run(code)
    assert done.returncode == 0, done.stderr
    assert not SERVER_PACKAGES & set(done.stdout.replace("'", " ").replace(",", " ").split())


@pytest.mark.parametrize(
    "code",
    [
        "import asyncio; from evertick import App; asyncio.run(App().submit('handle'))",
        "from evertick import App; App().run()",
    ],
)
def test_what_needs_the_server_says_what_to_install(code: str) -> None:
    done = run(BLOCK + code)
    assert done.returncode == 1
    assert "pip install 'evertick[server]'" in done.stderr


def command(*arguments: str) -> str:
    """The code of `evertick` with these arguments where the server's packages are missing."""
    return f"{BLOCK}\nsys.argv = {['evertick', *arguments]!r}\nfrom evertick.cli.main import main\nmain()"


@pytest.mark.parametrize(
    "arguments",
    [
        ("up", "--port", "0"),
        ("scheduler", "--help"),
        ("migrate",),
        ("doctor", "--json"),
        ("tenants", "list"),
        ("keys", "create", "--role", "worker"),
        ("secrets",),
        ("bench", "drain"),
    ],
)
def test_a_command_of_the_server_says_what_to_install(arguments: tuple[str, ...]) -> None:
    done = run(command(*arguments))
    assert done.returncode == 1
    assert done.stderr == f"Error: evertick {arguments[0]} needs the server: pip install 'evertick[server]'\n"


def test_the_help_knows_which_commands_need_the_server() -> None:
    listed = run(command("--help"), {"COLUMNS": "120"}).stdout
    named = {line.split()[0] for line in listed.splitlines() if "needs the server" in line}
    code = """
from evertick.cli.main import COMMANDS, app
root = app
for name in COMMANDS:
    found = root.resolve_command(root.make_context("evertick", [name, "--help"]), [name])[1]
    if "needs the server" in (found.help or ""):
        print(name)
"""
    assert named == set(run(BLOCK + code).stdout.split())
    assert "up" in named


@pytest.mark.parametrize("options", [(), ("--database-url", "postgresql://evertick@127.0.0.1/evertick")])
def test_a_command_on_a_database_says_what_to_install(options: tuple[str, ...]) -> None:
    done = run(command("jobs", "list", *options), {"EVERTICK_URL": "", "EVERTICK_PROFILE": ""})
    assert done.returncode == 1
    assert done.stderr.endswith("uses a database, needs the server: pip install 'evertick[server]'\n")


def test_the_command_line_needs_no_server_to_explain_itself_and_to_preview() -> None:
    listed = run(command("--help"), {"COLUMNS": "120"})
    assert listed.returncode == 0, listed.stderr
    assert "List, follow, show, cancel and replay runs." in listed.stdout
    assert "evertick up needs the server: pip install 'evertick[server]'" in listed.stdout
    assert run(command("--version")).stdout.startswith("evertick ")
    assert "At 09:00 every day" in run(command("preview", "0 9 * * *")).stdout
    assert run(command("config", "check")).returncode == 0
    assert "no process has reported" in run(command("health", "--file", "/nowhere")).stderr


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the wheel's content, built from this tree."""
    directory = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(directory)],
        cwd=ROOT,
        capture_output=True,
        timeout=SECONDS,
        check=True,
    )
    (wheel,) = directory.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(directory / "site")
    return directory / "site"


def test_the_wheel_names_the_servers_packages_as_an_extra_alone(installed: Path) -> None:
    (metadata,) = installed.glob("*.dist-info/METADATA")
    needs = [line for line in metadata.read_text(encoding="utf-8").splitlines() if line.startswith("Requires-Dist")]
    base = " ".join(line for line in needs if "extra ==" not in line)
    assert "httpx" in base
    assert not [name for name in SERVER_PACKAGES if name.replace("_", "-") in base]
    assert any("asyncpg" in line and "embedded" in line for line in needs), "with its own server comes the server"


async def test_a_wheel_without_extras_runs_the_remote_worker_and_the_client(installed: Path, database_url: str) -> None:
    code = f"""
import runpy, sys
sys.path.insert(0, {str(installed)!r})
{BLOCK}
import evertick
assert evertick.__file__.startswith({str(installed)!r})
with evertick.Client() as client:
    job = client.jobs.create(schedule="now", target={worker_target("send_invoice", "billing")!r},
                             payload={{"customer": "c1"}})
    print(job.job_id, flush=True)
runpy.run_path({str(ROOT / "examples" / "remote_worker.py")!r}, run_name="__main__")
"""
    async with served(database_url) as house, house.client() as client:
        environment = {**os.environ, "EVERTICK_URL": house.url, "EVERTICK_API_KEY": await house.key(KeyRole.ADMIN)}
        environment.pop("PYTHONPATH", None)
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", code, env=environment, stdout=pipe, stderr=pipe
        )
        try:
            assert process.stdout is not None
            job_id = (await asyncio.wait_for(process.stdout.readline(), SECONDS)).decode().strip()
            assert job_id.startswith("job_"), (await process.communicate())[1].decode()
            await house.until_run(client, await _run_of(client, job_id), "success")
        finally:
            process.terminate()
            await process.communicate()
    assert process.returncode == 0


async def test_a_wheel_without_extras_has_the_command_line_over_http(
    installed: Path, database_url: str, tmp_path: Path
) -> None:
    (tmp_path / "shop.py").write_text(SHOP, encoding="utf-8")
    async with served(database_url) as house, house.client() as client:
        environment = {**os.environ, "EVERTICK_URL": house.url, "EVERTICK_API_KEY": house.api_key}

        async def start(*arguments: str) -> asyncio.subprocess.Process:
            code = f"import sys\nsys.path.insert(0, {str(installed)!r})\n{command(*arguments)}"
            pipe = asyncio.subprocess.PIPE
            return await asyncio.create_subprocess_exec(
                sys.executable, "-c", code, env=environment, cwd=tmp_path, stdout=pipe, stderr=pipe
            )

        async def result(*arguments: str) -> Any:
            process = await start(*arguments, "--json")
            out, err = await asyncio.wait_for(process.communicate(), SECONDS)
            assert process.returncode == 0, err.decode()
            return json.loads(out)

        added = await result("jobs", "add", "hello", "manual", "--queue", "shop", "--handler", "greet")
        assert [job["job_id"] for job in await result("jobs", "list")] == [added["job_id"]]
        worker = await start("worker", "shop:app")
        try:
            run_id = (await result("jobs", "trigger", "hello"))["run_id"]
            await house.until_run(client, run_id, "success")
        finally:
            worker.terminate()
            await worker.communicate()
        assert worker.returncode == 0
        assert [each["run_id"] for each in await result("runs", "list")] == [run_id]
        assert await result("dead-letters", "list") == []


async def _run_of(client: AsyncClient, job_id: str) -> str:
    job = await client.jobs.get(job_id)
    run_id: str = (await client.jobs.trigger(job.job_id, force=True)).run_id
    return run_id
