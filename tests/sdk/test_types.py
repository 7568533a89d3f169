"""What type checkers say to an application that uses an App."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[1] / "data" / "typed_app"
EXPECTED = {
    number
    for number, line in enumerate((PROJECT / "shop.py").read_text(encoding="utf-8").splitlines(), 1)
    if "  # error: " in line
}


def test_mypy_finds_the_errors_of_an_application_and_no_others() -> None:
    cache = Path(__file__).parents[2] / ".mypy_cache" / "typed_app"  # kept, since a first look takes half a minute
    options = ("--strict", "--no-error-summary", "--config-file=", f"--cache-dir={cache}", "--follow-imports=silent")
    command = [sys.executable, "-m", "mypy", *options, str(PROJECT / "shop.py")]
    said = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    found = {int(number) for number in re.findall(r"shop\.py:(\d+): error:", said)}
    assert found == EXPECTED, said


def test_pyright_finds_the_errors_of_an_application_and_no_others() -> None:
    pyright = Path(sys.executable).with_name("pyright")
    if shutil.which("node") is None or not pyright.exists():
        pytest.skip("no node or no pyright: what pyright says to applications IS NOT TESTED")
    command = [str(pyright), "--outputjson", "--pythonpath", sys.executable, str(PROJECT / "shop.py")]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    if not ran.stdout.startswith("{"):
        pytest.skip(f"pyright cannot be had: what it says to applications IS NOT TESTED ({ran.stderr[-300:]})")
    said = json.loads(ran.stdout)["generalDiagnostics"]
    found = {each["range"]["start"]["line"] + 1 for each in said if each["severity"] == "error"}
    assert found == EXPECTED, "\n".join(f"{each['range']['start']['line'] + 1}: {each['message']}" for each in said)
