"""The log of a process: one line for each event on stderr, as text for people or as JSON for programs, in UTC.

No secret gets into a log: errors of the store name a database without its password, and payloads are not logged.
Records that are about a run, a job or a tenant have their ids as fields, by the functions at the end.
"""

import json
import logging
import sys
from collections.abc import Iterable
from datetime import UTC, datetime
from itertools import islice
from typing import IO, Any

from evertick.config.values import LOG_FORMATS
from evertick.domain.attempt import Attempt
from evertick.domain.ids import Prefix, format_id, format_run_id
from evertick.domain.schedule.instants import to_us
from evertick.runtime.terminal import terminal_safe, terminal_safe_json

TEXT, JSON = LOG_FORMATS
MAX_CHARACTERS = 16_000
"""Of a message or traceback in JSON: what collects logs cuts longer lines, and then they are not JSON any more."""
MAX_NAMED = 20
"""Runs or jobs that one record names at most: it may be about thousands."""
_ROOT = "evertick."
_LIBRARIES = ("aiohttp", "asyncio", "botocore", "httpcore", "httpx", "urllib3")
"""Of these only warnings are logged: with each request, some log what Evertick itself does."""
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class LineFormatter(logging.Formatter):
    """`2026-06-09T13:00:00.000Z INFO    scheduler: message`."""

    def format(self, record: logging.LogRecord) -> str:
        # A message of several lines, such as a driver's error, stays one.
        message = " ".join(record.getMessage().split())
        line = f"{_time(record, 'milliseconds')} {record.levelname:<7} {record.name.removeprefix(_ROOT)}: {message}"
        return terminal_safe(f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line)


class JsonFormatter(logging.Formatter):
    """One JSON object: `time`, `level`, `logger`, `message`, then the record's own fields, and `exception`."""

    def format(self, record: logging.LogRecord) -> str:
        ours: dict[str, Any] = {
            "time": _time(record, "microseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": _cut(record.getMessage()),
        }
        fields = {name: value for name, value in vars(record).items() if name not in _STANDARD}
        if record.exc_info:
            ours["exception"] = _cut(self.formatException(record.exc_info))
        try:
            text = _json(ours | fields | ours)  # a field of a user's record does not replace one of these
        except Exception:  # noqa: BLE001 - whatever a user's object does when it is looked at
            text = _json(ours | {"fields": _repr(fields)})
        return terminal_safe_json(text)


def set_up_logs(
    level: str, log_format: str = TEXT, stream: IO[str] | None = None, *, has_users_code: bool = False
) -> None:
    """Send the log of this process to a stream, stderr by default: Evertick's and, where it runs users' code, that of
    all loggers but those of libraries that we use; of the others only warnings.
    """
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter() if log_format == JSON else LineFormatter())
    logging.basicConfig(level=level.upper() if has_users_code else logging.WARNING, handlers=[handler], force=True)
    for name in _LIBRARIES:
        if logging.getLogger(name).level == logging.NOTSET:
            logging.getLogger(name).setLevel(logging.WARNING)
    logging.getLogger("evertick").setLevel(level.upper())


def run_fields(attempt: Attempt) -> dict[str, Any]:
    """The fields of a record about an attempt."""
    return {
        **(tenant_fields(attempt.tenant_id) if attempt.tenant_id else {}),  # a remote worker is not told it
        **job_fields(attempt.job_id),
        "job_name": attempt.name,
        "run_id": format_run_id(attempt.job_id, to_us(attempt.fire_at)),
        "attempt": attempt.attempt,
    }


def runs_fields(runs: Iterable[tuple[int, datetime]]) -> dict[str, Any]:
    """The fields of a record about several runs, given by their job and fire time."""
    return {"run_ids": [format_run_id(job_id, to_us(fire_at)) for job_id, fire_at in islice(runs, MAX_NAMED)]}


def jobs_fields(job_ids: Iterable[int]) -> dict[str, Any]:
    """The fields of a record about several jobs."""
    return {"job_ids": [format_id(Prefix.JOB, job_id) for job_id in islice(job_ids, MAX_NAMED)]}


def job_fields(job_id: int) -> dict[str, Any]:
    return {"job_id": format_id(Prefix.JOB, job_id)}


def tenant_fields(tenant_id: int) -> dict[str, Any]:
    return {"tenant_id": format_id(Prefix.TENANT, tenant_id)}


def _time(record: logging.LogRecord, precision: str) -> str:
    at = datetime.fromtimestamp(record.created, UTC)
    return f"{at.replace(tzinfo=None).isoformat(timespec=precision)}Z"


def _json(fields: dict[str, Any]) -> str:
    return json.dumps(fields, ensure_ascii=False, allow_nan=False, default=_repr)


def _cut(text: str) -> str:
    return text if len(text) <= MAX_CHARACTERS else f"{text[:MAX_CHARACTERS]}…"


def _repr(value: object) -> str:
    try:
        return _cut(str(value))
    except Exception:  # noqa: BLE001 - as above
        return f"<{type(value).__name__}>"
