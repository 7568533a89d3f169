"""Commands that pages tell people to run."""

import re
import shlex
from importlib import resources

from cli.commands import unknown_words

COMMAND = re.compile(r"(?:<code>|`)evertick ([^<`]*)")


def test_commands_that_pages_name_exist() -> None:
    templates = resources.files("evertick.dashboard").joinpath("templates").iterdir()
    named = [command for each in templates for command in COMMAND.findall(each.read_text(encoding="utf-8"))]
    assert len(named) >= 5
    assert [command for command in named if unknown_words(shlex.split(command))] == []
