"""Reads the Dockerfile: its stages, and the instructions of each, with lines joined and arguments put in."""

import re
import shlex
from typing import NamedTuple

from deploy.files import ROOT


class Instruction(NamedTuple):
    """One instruction, as in `COPY a b`."""

    word: str
    text: str

    @property
    def words(self) -> list[str]:
        """Its arguments, without options."""
        return [word for word in shlex.split(self.text) if not word.startswith("--")]


def stages() -> list[list[Instruction]]:
    """The instructions of each stage, from its FROM on."""
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    lines = re.sub(r"^#.*\n", "", text, flags=re.MULTILINE).replace("\\\n", " ").splitlines()
    found: list[list[Instruction]] = []
    arguments: dict[str, str] = {}
    for line in filter(None, map(str.strip, lines)):
        word, _, rest = line.partition(" ")
        if word == "ARG":
            name, _, value = rest.partition("=")
            arguments[f"${{{name}}}"] = value
            continue
        for name, value in arguments.items():
            rest = rest.replace(name, value)
        if word == "FROM":
            found.append([])
        found[-1].append(Instruction(word, rest.strip()))
    return found


def only(stage: list[Instruction], word: str) -> Instruction:
    """The one instruction of this kind."""
    (found,) = [each for each in stage if each.word == word]
    return found
