"""What other people wrote does nothing to the terminal that shows it."""

import json

from hypothesis import given, strategies as st

from evertick.runtime.legible import legible, legible_json


def test_escapes_are_shown_and_not_carried_out() -> None:
    assert legible("\x1b]0;owned\x07\x1b[2Jok") == r"\x1b]0;owned\x07\x1b[2Jok"
    assert legible("\x9b2J\x7f\r\x08") == r"\x9b2J\x7f\r\x08"
    assert legible("abc\u202edef\u2066\ud800") == r"abc\u202edef\u2066\ud800"


def test_what_people_write_stays_as_it_is() -> None:
    text = "Bericht für 東京 ✓ \U0001f600\tand\nmore [bold]"
    assert legible(text) == text
    assert legible("one\r\ntwo") == "one\ntwo"


@given(st.text(st.characters(exclude_categories=[])))
def test_any_text_can_be_printed(text: str) -> None:
    shown = legible(text).encode()
    assert all(byte >= 0x20 or byte in b"\t\n" for byte in shown)
    assert b"\x7f" not in shown


@given(st.text(st.characters(exclude_categories=[])))
def test_json_says_the_same(text: str) -> None:
    shown = legible_json(json.dumps({text: text}, ensure_ascii=False))
    shown.encode()
    assert json.loads(shown) == {text: text}
    assert not any(0x7F <= ord(each) < 0xA0 for each in shown)
