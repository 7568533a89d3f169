"""The image: built from pinned parts, runs as nobody, and its health check and command are real."""

import fnmatch
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from cli.processes import evertick
from deploy.dockerfile import only, stages
from deploy.files import ROOT, is_pinned, parse, unknown_settings

BUILD, FINAL = stages()
BUILD_SECONDS = 600


def test_every_base_image_has_a_version() -> None:
    assert all(is_pinned(only(stage, "FROM").words[0]) for stage in (BUILD, FINAL))


def test_it_does_not_run_as_root() -> None:
    last = [each.word for each in FINAL if each.word in {"USER", "RUN", "COPY"}][-1]
    assert last == "USER"
    assert re.fullmatch(r"[1-9]\d+:[1-9]\d+", only(FINAL, "USER").text)


def test_the_last_stage_installs_and_builds_nothing() -> None:
    assert not [each for each in FINAL if each.word == "RUN" and re.search(r"apt|pip|curl|gcc", each.text)]
    copies = [each for each in FINAL if each.word == "COPY"]
    assert copies
    assert all("--from=build" in each.text for each in copies)


def test_what_is_installed_is_pinned_by_hashes() -> None:
    installs = [each.text for each in BUILD if "pip install" in each.text]
    assert len(installs) == 3
    assert all("--require-hashes --only-binary :all:" in each or "--no-index" in each for each in installs)


@pytest.mark.parametrize("extra", ["server", "brokers", "archive", "otel"])
def test_it_has_what_settings_turn_on(extra: str) -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    locked = (ROOT / "requirements" / "server.lock").read_text(encoding="utf-8")
    names = {re.split(r"[<>=\[]", each)[0] for each in extras[extra]} - {"evertick"}
    assert [name for name in names if f"{name}==" not in locked] == []


def test_every_source_of_a_copy_exists_and_is_not_ignored() -> None:
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    kept = {line.removeprefix("!") for line in ignored if line.startswith("!")}
    assert ignored[1] == "*", "all else is ignored"
    for instruction in (each for each in BUILD if each.word == "COPY"):
        for source in instruction.words[:-1]:
            assert (ROOT / source).exists()
            assert any(fnmatch.fnmatch(source.split("/")[0], pattern) for pattern in kept), source


def test_the_commands_and_settings_are_real() -> None:
    assert json.loads(only(FINAL, "ENTRYPOINT").text) == ["evertick"]
    assert parse(json.loads(only(FINAL, "CMD").text)) == "up"
    program, *check = json.loads(only(FINAL, "HEALTHCHECK").text.partition(" CMD ")[2])
    assert (program, parse(check)) == ("evertick", "health")
    variables = dict(word.split("=", 1) for word in only(FINAL, "ENV").words)
    assert unknown_settings(variables) == []
    assert "EVERTICK_HEALTH_FILE" in variables, "what the health check reads"


@pytest.mark.campaign
async def test_the_steps_of_the_build_make_an_evertick_that_runs(tmp_path: Path, database_url: str) -> None:
    installed = tmp_path / "opt" / "evertick" / "bin" / "evertick"
    build(tmp_path / "build", tmp_path / "opt")
    options = ("--roles", "api", "--database-url", database_url)
    async with evertick("up", *options, program=(str(installed),)) as up:
        assert (await up.ready()).startswith("Evertick is ready at http://")
        assert await up.stop() == 0


def build(work: Path, opt: Path) -> None:
    """Follow the steps of the build, with other directories. Wheels come from the package registry."""
    work.mkdir()
    python = Path(sys.executable).resolve().parent
    environment = {**os.environ, "PATH": f"{python}:{os.environ['PATH']}"}
    for instruction in BUILD:
        if instruction.word == "COPY":
            *sources, target = instruction.words
            for source in sources:
                copy(ROOT / source, work / (f"{target}{Path(source).name}" if target.endswith("/") else target))
        elif instruction.word == "RUN":
            command = instruction.text.replace("/opt/", f"{opt}/")
            subprocess.run(command, shell=True, cwd=work, env=environment, check=True, timeout=BUILD_SECONDS)


def copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        shutil.copytree(source, target)
    else:
        shutil.copy(source, target)
