"""Logs for people: one line for each event on stderr, in UTC; tracebacks follow theirs.

What is secret never gets here: errors of the store name a database without its password. Nor does what acts on the
terminal that shows them: errors of handlers and receivers are other people's texts.
"""

import logging
import sys
from datetime import UTC, datetime
from typing import IO

from evertick.runtime.terminal_text import terminal_safe

LEVELS = ("debug", "info", "warning", "error")
DEFAULT_LEVEL = "info"
_ROOT = "evertick."


class LineFormatter(logging.Formatter):
    """`2026-06-09T13:00:00.000Z INFO    scheduler: message`."""

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC)
        shown = at.replace(tzinfo=None).isoformat(timespec="milliseconds")
        # A message of several lines, such as a driver's error, stays one.
        message = " ".join(record.getMessage().split())
        line = f"{shown}Z {record.levelname:<7} {record.name.removeprefix(_ROOT)}: {message}"
        return terminal_safe(f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line)


def set_up_logs(level: str = DEFAULT_LEVEL, stream: IO[str] | None = None) -> None:
    """Send the log of this process to a stream, stderr by default; of other libraries only warnings."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(LineFormatter())
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.getLogger("evertick").setLevel(level.upper())
