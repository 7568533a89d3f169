"""The systemd units: valid, sandboxed, and with real commands and settings."""

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from deploy.files import DEPLOY, parse, unknown_settings
from evertick.config.reading import read_settings

UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
MAX_EXPOSURE = 2.0
PROGRAM = "/opt/evertick/bin/evertick"
needs_systemd = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="NOT TESTED: no systemd-analyze; `apt install systemd`"
)


def values(unit: Path, key: str) -> list[str]:
    return re.findall(rf"^{key}=(.*)$", unit.read_text(encoding="utf-8"), re.MULTILINE)


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_commands_and_settings_are_real(unit: Path) -> None:
    ((program, *arguments),) = map(shlex.split, values(unit, "ExecStart"))
    assert program == PROGRAM
    parse([argument.replace("%i", "shop:app") for argument in arguments])
    variables = dict(each.split("=", 1) for each in values(unit, "Environment"))
    assert unknown_settings(variables) == []
    passed_on = {each.partition(":")[0] for each in values(unit, "LoadCredential")}
    assert {f"%d/{name}" for name in passed_on} == set(variables.values())
    assert values(unit, "Type") == (["oneshot"] if "migrate" in unit.name else ["notify"])


def test_the_environment_file_is_valid(tmp_path: Path) -> None:
    text = (DEPLOY / "systemd" / "evertick.env").read_text(encoding="utf-8")
    settings = dict(re.findall(r"^(?:# )?(EVERTICK_\w+)=(.*)$", text, re.MULTILINE))
    assert len(settings) > 3
    assert unknown_settings(settings) == []
    read_settings(settings, tmp_path)


@needs_systemd
def test_systemd_finds_no_fault(tmp_path: Path) -> None:
    program = tmp_path / "evertick"
    program.symlink_to(sys.executable)  # whatever can be executed
    for unit in (DEPLOY / "systemd").iterdir():
        text = unit.read_text(encoding="utf-8").replace(PROGRAM, str(program))
        (tmp_path / unit.name).write_text(text, encoding="utf-8")
    checked = [str(path) for path in tmp_path.iterdir() if path.suffix in {".service", ".target"}]
    assert len(checked) == len(UNITS) + 1
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *checked], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


@needs_systemd
@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_a_service_has_hardly_any_rights(unit: Path) -> None:
    done = subprocess.run(
        ["systemd-analyze", "security", "--offline=yes", "--no-pager", str(unit)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    found = re.search(r"exposure level for \S+: ([\d.]+)", done.stdout)
    assert found, done.stderr
    assert float(found[1]) <= MAX_EXPOSURE
