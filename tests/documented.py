"""The code blocks of the pages, and the commands in them. A comment before a block says why it is not run:
`<!-- not run: needs Docker -->`.
"""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
PAGES = [
    *sorted(ROOT.glob("*.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "examples").rglob("*.md")),
]
_BLOCK = re.compile(
    r"(?:^<!-- not run: (?P<reason>[^\n]+?) -->\n)?^```(?P<language>\w*)[^\n]*\n(?P<code>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
_FILE = re.compile(r"# (\S+\.(?:py|toml))\n")
_SEPARATORS = {"|", "||", "&&", ";", "&"}
_ASSIGNMENT = re.compile(r"\w+=")


class Block(NamedTuple):
    """A fenced block of a page. `not_run` is the reason why it cannot be."""

    page: Path
    line: int
    language: str
    code: str
    not_run: str | None

    @property
    def place(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    @property
    def file(self) -> str | None:
        """The file that the block shows, if its first line names one."""
        found = _FILE.match(self.code)
        return None if found is None else found[1]

    def commands(self) -> Iterator[list[str]]:
        """The words of each command of a shell block: of a console, those lines that begin with `$`."""
        text = self.code
        if self.language == "console":
            text = "\n".join(_typed_lines(text))
        for line in _joined(text):
            yield from _split(line)


def blocks_of(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    return [
        Block(page, text.count("\n", 0, found.start("code")), found["language"], found["code"], found["reason"])
        for found in _BLOCK.finditer(text)
    ]


def all_blocks(*languages: str, page: Path | None = None) -> list[Block]:
    """All blocks in these languages that can be run, of one page or of all."""
    blocks = [block for each in PAGES for block in blocks_of(each) if page in (None, each)]
    return [block for block in blocks if block.language in languages and block.not_run is None]


def _typed_lines(text: str) -> Iterator[str]:
    """Without the prompts, and without what the commands print."""
    goes_on = False
    for line in text.splitlines():
        if line.startswith("$ "):
            yield line.removeprefix("$ ")
        elif goes_on:
            yield line
        quotes = line.count("'") % 2 == 1
        begins = line.startswith("$ ") or goes_on
        goes_on = begins and (line.endswith("\\") or (quotes != goes_on))


def _joined(text: str) -> Iterator[str]:
    """Lines, where a backslash or an open quote joins some."""
    waiting = ""
    for line in text.splitlines():
        waiting += line
        if waiting.endswith("\\"):
            waiting = waiting[:-1]
        elif waiting.count("'") % 2:
            waiting += "\n"
        else:
            yield waiting
            waiting = ""


def _split(line: str) -> Iterator[list[str]]:
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;")
    lexer.whitespace_split = True
    words: list[str] = []
    for word in [*lexer, ";"]:
        if word not in _SEPARATORS:
            words.append(word)
            continue
        while words and _ASSIGNMENT.match(words[0]):
            words.pop(0)
        if words:
            yield words
        words = []
