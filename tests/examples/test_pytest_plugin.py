"""The pytest plugin, in the project that the page on testing shows, and where nobody uses it."""

import subprocess
import sys
from pathlib import Path

from documented import ROOT, blocks_of

PAGE = ROOT / "docs" / "testing.md"
SECONDS = 120
UNUSED = """
import sys

def test_nothing_of_evertick_is_imported():
    loaded = [name for name in sys.modules if name.startswith("evertick.")]
    assert sorted(loaded) == sorted(ALLOWED)
"""
WRONG = """
def test_wrong(clock): ...
"""


def pytest_in(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=SECONDS, check=False)


def test_the_example_project_passes_its_tests(tmp_path: Path) -> None:
    for block in blocks_of(PAGE):
        if block.file is not None:
            (tmp_path / block.file).write_text(block.code, encoding="utf-8")
    done = pytest_in(tmp_path, "--strict-markers")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout


def test_projects_that_do_not_use_it_import_nothing(tmp_path: Path) -> None:
    allowed = ["evertick.domain", "evertick.domain.errors", "evertick.pytest_plugin", "evertick.version"]
    (tmp_path / "test_unused.py").write_text(f"ALLOWED = {allowed!r}\n{UNUSED}", encoding="utf-8")
    done = pytest_in(tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


def test_it_says_what_is_missing(tmp_path: Path) -> None:
    (tmp_path / "test_wrong.py").write_text(WRONG, encoding="utf-8")
    assert "say which App: evertick_app = MODULE:APP" in pytest_in(tmp_path).stdout
    assert "that is a type, not an App" in pytest_in(tmp_path, "-o", "evertick_app=pathlib:Path").stdout
