"""A bound on work that a busy machine cannot break: calls are counted, not milliseconds."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

MAX_CALLS = 75_000
"""What 10 ms have room for; walking through years tick by tick takes more."""


class TooMuchWorkError(AssertionError):
    pass


@contextmanager
def calls_at_most(most: int) -> Iterator[None]:
    left = most

    def count(_frame: object, event: str, _arg: object) -> None:
        nonlocal left
        left -= event in {"call", "c_call"}
        if left < 0:
            sys.setprofile(None)
            raise TooMuchWorkError(f"more than {most} calls")

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        yield
    finally:
        sys.setprofile(before)
