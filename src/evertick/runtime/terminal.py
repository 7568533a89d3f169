"""Texts of others, made harmless to print on a terminal.

Errors of handlers and receivers are such texts: characters that control the terminal, or the order of its text, are
shown as escapes.
"""

import json
import re
from collections.abc import Callable
from unicodedata import category

_SUSPECT = re.compile(r"[^\t\n\x20-\x7e]")
_ACTING = {"Cc", "Cf", "Cs", "Zl", "Zp"}
"""Control and format characters (among these all that turn the writing direction), halves of a character, and line
breaks of another kind."""
_TAGS = range(0xE0000, 0xE1000)
"""Invisible, those too that no version of Unicode has named yet."""
_JOINERS = "\u200c\u200d"
"""Many scripts need these between two letters, and emoji between two signs. Beside ASCII they only hide."""


def terminal_safe(text: str) -> str:
    r"""The text, harmless to print: an escape is `\x1b`."""
    return _SUSPECT.sub(lambda found: _shown(found, _escaped), text.replace("\r\n", "\n"))


def terminal_safe_json(text: str) -> str:
    """JSON that says the same, harmless to print: its own escapes stand for what would act."""
    return _SUSPECT.sub(lambda found: _shown(found, _escaped_json), text)


def _shown(found: re.Match[str], escaped: Callable[[str], str]) -> str:
    return escaped(found[0]) if _acts(found) else found[0]


def _acts(found: re.Match[str]) -> bool:
    char, text, start = found[0], found.string, found.start()
    if char in _JOINERS:
        return not (_is_joined(text[max(start - 1, 0) : start]) and _is_joined(text[start + 1 : start + 2]))
    return category(char) in _ACTING or ord(char) in _TAGS


def _is_joined(char: str) -> bool:
    """Whether a joiner may stand beside this: a letter, mark or sign beyond ASCII."""
    return bool(char) and not char.isascii() and category(char)[0] in "LMS"


def _escaped(char: str) -> str:
    return char.encode("unicode_escape").decode("ascii")


def _escaped_json(char: str) -> str:
    return json.dumps(char)[1:-1]
