"""On which server the bench measures, what it leaves there, and how it fails."""

import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import pytest

import postgres
from bench.commands import bench, databases, fetched
from evertick.bench import testbed as testbeds  # pytest would collect an imported class Testbed
from evertick.bench.scenario import Scenario
from evertick.cli.commands.bench import run_scenario
from evertick.store.server.embedded import EmbeddedServer

SMALL = ("load", "--jobs", "50", "--rules", "5")


@dataclass(frozen=True)
class NoOptions:
    """Options of a scenario without any."""


@pytest.fixture
def folder(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory for temporary files."""
    data_dir.mkdir()
    data_dir.chmod(0o711)
    monkeypatch.setattr(tempfile, "tempdir", str(data_dir))
    return data_dir


def test_by_default_it_brings_its_own_server_and_removes_it(folder: Path) -> None:
    result = bench(*SMALL)
    assert "bytes per job" in result.stdout
    assert list(folder.iterdir()) == []


def test_a_directory_stays_and_is_used_again(data_dir: Path) -> None:
    measured = [json.loads(bench(*SMALL, "--data-dir", str(data_dir), "--json").stdout) for _ in range(2)]
    assert [found["jobs"] for found in measured] == [50, 50]
    (name,) = {found["database"] for found in measured}
    server = EmbeddedServer(data_dir)
    try:
        url = server.start().replace("/evertick?", f"/{name}?")
        assert fetched(url, "SELECT count(*) FROM jobs")[0]["count"] == 100
    finally:
        server.stop()


def test_a_database_that_is_kept_on_a_server_is_named(postgres_server: postgres.Server) -> None:
    url = postgres_server.embedded.url
    found = json.loads(bench(*SMALL, "--database-url", url, "--keep", "--json").stdout)
    assert databases(url) == [found["database"]]
    fetched(url, f"DROP DATABASE {found['database']}")


@pytest.mark.parametrize(
    "arguments",
    [
        ("hot-second", "--jobs", "10", "--due", "11"),
        ("steady", "--jobs", "10", "--rate", "11"),
        ("load", "--jobs", "0"),
        ("load", "--keep"),
        ("load", "--database-url", "postgresql://somewhere/evertick", "--data-dir", "somewhere"),
    ],
)
def test_contradicting_options_are_wrong_usage(arguments: tuple[str, ...]) -> None:
    bench(*arguments, code=2)


def test_a_server_out_of_reach_has_an_exit_code_of_its_own() -> None:
    result = bench(*SMALL, "--database-url", "postgresql://127.0.0.1:1/evertick", code=3)
    assert "cannot reach database evertick" in result.stderr


def test_a_user_without_the_privilege_to_create_databases_gets_an_error(postgres_server: postgres.Server) -> None:
    url = postgres_server.embedded.url
    fetched(url, "CREATE ROLE bench_without_rights LOGIN")
    try:
        result = bench(*SMALL, "--database-url", url.replace("postgres@", "bench_without_rights@"), code=1)
        assert "may not create a database" in result.stderr
    finally:
        fetched(url, "DROP ROLE bench_without_rights")


@pytest.mark.parametrize("figures", [{"missing": 1, "duplicates": 0}, {"missing": 0, "duplicates": 1}])
def test_missing_runs_and_duplicates_are_a_failure(
    figures: dict[str, Any], postgres_server: postgres.Server, capsys: pytest.CaptureFixture[str]
) -> None:
    async def run(testbed: testbeds.Testbed, options: NoOptions) -> dict[str, Any]:
        return figures

    with pytest.raises(click.exceptions.Exit) as failed:
        run_scenario(
            Scenario("unsound", "", "", NoOptions, run),
            NoOptions(),
            testbeds.ServerChoice(postgres_server.embedded.url),
            as_json=True,
        )
    assert failed.value.exit_code == 1
    assert json.loads(capsys.readouterr().out)["missing"] == figures["missing"]


def test_a_process_that_dies_is_a_failure_with_the_end_of_its_log(
    postgres_server: postgres.Server, capsys: pytest.CaptureFixture[str]
) -> None:
    async def run(testbed: testbeds.Testbed, options: NoOptions) -> dict[str, Any]:
        await (await testbed.fleet.start("stranger", "no_such_module")).line()
        return {}

    with pytest.raises(click.exceptions.Exit) as failed:
        run_scenario(
            Scenario("broken", "", "", NoOptions, run),
            NoOptions(),
            testbeds.ServerChoice(postgres_server.embedded.url),
            as_json=True,
        )
    assert failed.value.exit_code == 1
    assert "no_such_module" in capsys.readouterr().err
    assert databases(postgres_server.embedded.url) == []
