"""Evertick: a distributed job scheduler that accounts for every tick."""

import importlib
from typing import TYPE_CHECKING, Any

from evertick.domain.errors import (
    EvertickError,
    InvalidInput,
    InvalidSchedule,
    ResultNotKept,
    RunCancelled,
    RunFailed,
)
from evertick.version import __version__

if TYPE_CHECKING:
    from evertick import inbox, receive
    from evertick.client import ApiError, AsyncClient, Client
    from evertick.domain.schedule.schedule import Schedule
    from evertick.executor.handlers.run import DoNotRetry, RetryLater, Run
    from evertick.sdk.app import App
    from evertick.sdk.remote import Worker

__all__ = [
    "ApiError",
    "App",
    "AsyncClient",
    "Client",
    "DoNotRetry",
    "EvertickError",
    "InvalidInput",
    "InvalidSchedule",
    "ResultNotKept",
    "RetryLater",
    "Run",
    "RunCancelled",
    "RunFailed",
    "Schedule",
    "Worker",
    "__version__",
    "inbox",
    "receive",
]

# Loaded when first asked for: computing schedules needs neither a database driver nor an event loop, and the command
# line's help needs none of them.
_LATER = {
    "ApiError": "evertick.client",
    "App": "evertick.sdk.app",
    "AsyncClient": "evertick.client",
    "Client": "evertick.client",
    "DoNotRetry": "evertick.executor.handlers.run",
    "RetryLater": "evertick.executor.handlers.run",
    "Run": "evertick.executor.handlers.run",
    "Schedule": "evertick.domain.schedule.schedule",
    "Worker": "evertick.sdk.remote",
}
_MODULES = ("inbox", "receive")


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"evertick.{name}")
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_LATER[name]), name)
