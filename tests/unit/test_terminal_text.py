"""What other people wrote does nothing to the terminal that shows it."""

import json
import sys
from unicodedata import category

from hypothesis import given, strategies as st

from evertick.runtime.terminal import terminal_safe, terminal_safe_json


def test_escapes_are_shown_and_not_carried_out() -> None:
    assert terminal_safe("\x1b]0;owned\x07\x1b[2Jok") == r"\x1b]0;owned\x07\x1b[2Jok"
    assert terminal_safe("\x9b2J\x7f\r\x08") == r"\x9b2J\x7f\r\x08"
    assert terminal_safe("abc\u202edef\u2066\ud800") == r"abc\u202edef\u2066\ud800"


def test_what_people_write_stays_as_it_is() -> None:
    text = "Bericht für 東京 ✓ \U0001f600\tand\nmore [bold]"
    assert terminal_safe(text) == text
    assert terminal_safe("one\r\ntwo") == "one\ntwo"


def test_format_characters_are_shown_whatever_they_turn_or_hide() -> None:
    assert terminal_safe("a\u061cb\u200eb\ufeffc\u00add") == r"a\u061cb\u200eb\ufeffc\xadd"
    assert terminal_safe("\ufff9x\ufffb\U000e0041\U000e0080") == r"\ufff9x\ufffb\U000e0041\U000e0080"
    assert terminal_safe("pay\u200dpal, \u200c") == r"pay\u200dpal, \u200c"


def test_joiners_within_words_and_emoji_stay() -> None:
    text = "\u0645\u06cc\u200c\u062e\u0648 \U0001f469\u200d\U0001f4bb \u0915\u094d\u200d\u0937"
    assert terminal_safe(text) == text


def test_no_character_of_unicode_that_acts_passes() -> None:
    acting = [chr(code) for code in range(sys.maxunicode + 1) if category(chr(code)) in {"Cc", "Cf", "Cs", "Zl", "Zp"}]
    assert "\u061c" in acting
    passed = {char for char in acting if char in terminal_safe(f"a{char}b") and char not in "\t\n"}
    assert passed == set()
    assert all(json.loads(terminal_safe_json(f'"{char}"')) == char for char in acting if ord(char) > 0x7F)


@given(st.text(st.characters(exclude_categories=[])))
def test_any_text_can_be_printed(text: str) -> None:
    shown = terminal_safe(text).encode()
    assert all(byte >= 0x20 or byte in b"\t\n" for byte in shown)
    assert b"\x7f" not in shown


@given(st.text(st.characters(exclude_categories=[])))
def test_json_says_the_same(text: str) -> None:
    shown = terminal_safe_json(json.dumps({text: text}, ensure_ascii=False))
    shown.encode()
    assert json.loads(shown) == {text: text}
    assert not any(0x7F <= ord(each) < 0xA0 for each in shown)
