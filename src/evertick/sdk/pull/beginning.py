"""What a remote worker begins with: its handlers, its name, and the jobs that its app declares."""

import logging
import os
import re
import secrets
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from evertick.client import AsyncClient, Forbidden
from evertick.roles.worker.handlers import Handlers
from evertick.sdk.app import App

logger = logging.getLogger("evertick.worker")

Given: TypeAlias = App | Handlers | Mapping[str, Callable[..., Any]]

_UNFIT = re.compile(r"[^A-Za-z0-9._:@-]")


def handlers_of(given: Given) -> Handlers:
    if isinstance(given, App):
        return given.declarations.handlers
    return given if isinstance(given, Handlers) else Handlers(given)


def worker_name(base: str) -> str:
    """Unlike any other that ever was: what an earlier process of this name has leased must run out."""
    return f"{_UNFIT.sub('-', base)[:80]}-{os.getpid()}-{secrets.token_hex(4)}"


async def register(client: AsyncClient, app: App | None) -> None:
    """Put the jobs that an app declares, if the key may: that of a mere worker may not, and leaves them as they are."""
    declared = {} if app is None else app.declarations.jobs
    for job in declared.values():
        try:
            await client.jobs.replace(job.name, **dict(job.fields))
        except Forbidden:
            names = ", ".join(sorted(declared))
            logger.warning("the key may not put the jobs that the app declares, so they stay as they are: %s", names)
            return
