import io
import logging
from collections.abc import Iterator

import pytest

from evertick.runtime.terminal import set_up_logs


@pytest.fixture
def log() -> Iterator[io.StringIO]:
    root, ours = logging.getLogger(), logging.getLogger("evertick")
    before = root.handlers[:], root.level, ours.level
    # Handed back as they were: pytest's own handlers are among them.
    root.handlers = []
    stream = io.StringIO()
    set_up_logs("info", stream)
    yield stream
    root.handlers, root.level, ours.level = before


def test_an_event_is_one_line_with_its_time_level_and_role(log: io.StringIO) -> None:
    logging.getLogger("evertick.scheduler").info("took %d partitions,\n holds %d", 3, 256)
    (line,) = log.getvalue().splitlines()
    at, rest = line.split(" ", 1)
    assert at.endswith("Z")
    assert len(at) == len("2026-06-09T13:00:00.000Z")
    assert rest == "INFO    scheduler: took 3 partitions, holds 256"


def test_a_traceback_follows_its_line(log: io.StringIO) -> None:
    try:
        int("odd")
    except ValueError:
        logging.getLogger("evertick").exception("fire failed")
    first, *rest = log.getvalue().splitlines()
    assert first.endswith("ERROR   evertick: fire failed")
    assert rest[0].startswith("Traceback")
    assert rest[-1].startswith("ValueError: ")


def test_an_error_that_is_logged_does_nothing_to_the_terminal(log: io.StringIO) -> None:
    error = ValueError("\x1b[2J")
    logging.getLogger("evertick.worker").error("a handler failed: %s", "\x1b]0;owned\x07", exc_info=error)
    assert not {"\x1b", "\x07"} & set(log.getvalue())
    assert r"\x1b[2J" in log.getvalue()


def test_of_other_libraries_only_warnings_are_shown(log: io.StringIO) -> None:
    logging.getLogger("asyncio").info("noise")
    logging.getLogger("asyncio").warning("slow")
    logging.getLogger("evertick.janitor").debug("detail")
    assert [line.split(" ", 1)[1] for line in log.getvalue().splitlines()] == ["WARNING asyncio: slow"]
