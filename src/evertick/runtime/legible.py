"""Other people's texts on a terminal: what would act on it, or on the order of its text, is shown instead."""

import re

_ACTING = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # but for tab and line break
    "\u200e\u200f\u2028-\u202e\u2066-\u2069"  # line breaks of another kind, and turns of the writing direction
    "\ud800-\udfff]"  # halves of a character, which no terminal is sent
)


def legible(text: str) -> str:
    r"""The text, harmless to print: an escape is `\x1b`."""
    return _ACTING.sub(_shown, text.replace("\r\n", "\n"))


def legible_json(text: str) -> str:
    """JSON that says the same, harmless to print: its own escapes stand for what would act."""
    return _ACTING.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def _shown(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode("ascii")
