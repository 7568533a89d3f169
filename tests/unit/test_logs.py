import io
import json
import logging
import math
from collections.abc import Iterator
from typing import Any

import pytest

from evertick.domain.schedule.instants import from_us
from evertick.executor.handlers.run import Run
from evertick.executor.sources.http.source import RemoteAttempt
from evertick.runtime.logs import MAX_CHARACTERS, set_up_logs


@pytest.fixture
def log_format() -> str:
    return "text"


as_json = pytest.mark.parametrize("log_format", ["json"])


@pytest.fixture
def log(log_format: str) -> Iterator[io.StringIO]:
    root, ours = logging.getLogger(), logging.getLogger("evertick")
    before = root.handlers[:], root.level, ours.level
    # Handed back as they were: pytest's own handlers are among them.
    root.handlers = []
    stream = io.StringIO()
    set_up_logs("info", log_format, stream)
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


def test_a_percent_sign_in_the_name_of_a_job_is_no_format(log: io.StringIO) -> None:
    run = _run(name="100%s sure")
    run.logger.info("customer %s", "c1")
    run.logger.info("50% done")
    first, second = (line.split("run: ")[1] for line in log.getvalue().splitlines())
    assert first == f"100%s sure {run.run_id}: customer c1"
    assert second == f"100%s sure {run.run_id}: 50% done"


@as_json
def test_an_event_is_one_json_object(log: io.StringIO) -> None:
    logging.getLogger("evertick.scheduler").info("took %d partitions,\n holds %d", 3, 256, extra={"node": "a-1"})
    logging.getLogger("uvicorn.error").warning("slow")
    first, second = map(json.loads, log.getvalue().splitlines())
    assert len(first.pop("time")) == len("2026-06-09T13:00:00.000000Z")
    assert first == {
        "level": "info",
        "logger": "evertick.scheduler",
        "message": "took 3 partitions,\n holds 256",
        "node": "a-1",
    }
    assert (second["logger"], second["level"]) == ("uvicorn.error", "warning")


@as_json
def test_a_handlers_record_has_its_run_and_its_own_fields(log: io.StringIO) -> None:
    run = _run(tenant_id=7)
    run.logger.info("sent", extra={"customer": "c1", "level": "mine", "sum": math.nan} | {"at": object})
    (line,) = log.getvalue().splitlines()
    seen = json.loads(line)
    assert seen["level"] == "info", "a field cannot replace one of the format's"
    assert "'customer': 'c1'" in seen["fields"], "what JSON cannot say is there as a text"
    run.logger.info("sent", extra={"customer": "c1", "level": "mine"})
    seen = json.loads(log.getvalue().splitlines()[1])
    assert (seen["customer"], seen["level"]) == ("c1", "info")
    assert {name: seen[name] for name in ("run_id", "job_id", "job_name", "attempt", "tenant_id")} == {
        "run_id": run.run_id,
        "job_id": run.job_id,
        "job_name": run.name,
        "attempt": 2,
        "tenant_id": "ten_0000000000007",
    }


@as_json
def test_an_exception_is_a_field_and_a_line_has_a_limit(log: io.StringIO) -> None:
    text = "x" * 10 * MAX_CHARACTERS
    logging.getLogger("evertick.worker").error("it failed: %s", text, exc_info=ValueError(text))
    (line,) = log.getvalue().splitlines()
    assert json.loads(line)["exception"].startswith("ValueError: xxx")
    assert len(line) < 3 * MAX_CHARACTERS


@as_json
def test_json_does_nothing_to_the_terminal(
    log: io.StringIO, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    root = logging.getLogger()  # reports of parallel tests cannot have what is no text, so they must not see it
    captures = type(caplog.handler)
    monkeypatch.setattr(root, "handlers", [each for each in root.handlers if not isinstance(each, captures)])
    logging.getLogger("evertick.worker").error("a handler failed: %s", "\x1b[2J\u202e\ud800")
    (line,) = log.getvalue().splitlines()
    assert not {"\x1b", "\u202e", "\ud800"} & set(line)
    assert json.loads(line)["message"] == "a handler failed: \x1b[2J\u202e\ud800"


def _run(**fields: Any) -> Run:
    given: dict[str, Any] = {
        "token": (1, 5), "lease_id": 1, "job_id": 256, "name": "nightly", "fire_at": from_us(10**15), "reason": "tick",
        "attempt": 2, "deferrals": 0, "handler": "h", "payload": None, "timeout_seconds": 60, "idempotency_key": "k",
    }  # fmt: skip
    return Run(RemoteAttempt(**given | fields), from_us(10**15))
