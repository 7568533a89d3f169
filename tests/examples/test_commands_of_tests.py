"""The commands that pages give for repeating a measurement select tests that there are."""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise

import pytest

from documented import ROOT

SECONDS = 600
PAGES = ("archive.md", "limits.md", "reliability.md")
FOLDER = "tests/faults"
ROW = re.compile(r"^\|.*\| `((?:-m \S.*? )?tests/faults/[^`]+)`", re.MULTILINE)
"""In a table whose head has the beginning of the command."""
COMMAND = re.compile(r"`\.venv/bin/pytest ([^`]*tests/faults/[^`]*)`")

COLLECT = """
import sys
import pytest

class Tell:
    def pytest_collection_modifyitems(self, items):
        for item in items:
            print("campaign" if item.get_closest_marker("campaign") else "not campaign", item.nodeid, sep=": ")

sys.exit(pytest.main(sys.argv[1:], plugins=[Tell()]))
"""
TOLD = re.compile(r"^((?:not )?campaign): (\S+::.*)$", re.MULTILINE)


def commands() -> Iterator[str]:
    for page in PAGES:
        text = (ROOT / "docs" / page).read_text(encoding="utf-8")
        yield from (f'-m "not campaign" {row}' for row in ROW.findall(text))
        yield from COMMAND.findall(text)


def selects(name: str, selection: str) -> bool:
    """As `-k` does, of which the pages use `and` and `not`."""
    terms = selection.split(" and ")
    return all((term.removeprefix("not ") in name) != term.startswith("not ") for term in terms)


@pytest.fixture(scope="module")
def collected() -> dict[str, list[str]]:
    """The names of the tests of faults, by the marks that select them."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTEST_ADDOPTS"}
    command = [sys.executable, "-c", COLLECT, "-q", "--collect-only", "-p", "no:cacheprovider", FOLDER]
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=SECONDS, check=True
    )
    found: dict[str, list[str]] = {"campaign": [], "not campaign": []}
    for marks, name in TOLD.findall(done.stdout):
        found[marks].append(name.lower())
    return found


def test_commands_of_pages_select_tests(collected: dict[str, list[str]]) -> None:
    given = list(commands())
    assert len(given) > 50
    for command in given:
        words = shlex.split(command)
        options = dict(pairwise(words))  # of two `-m` the last one counts
        assert "-m" in options, f"runs the campaign, too: {command}"
        files = [word for word in words if word.startswith(FOLDER)]
        assert files
        for file in files:
            names = [name for name in collected[options["-m"]] if name.startswith(f"{file}::")]
            assert [name for name in names if selects(name, options.get("-k", ""))], command
