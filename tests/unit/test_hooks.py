"""A hook that wants to end the process ends only itself."""

import asyncio
import logging
from datetime import UTC, datetime
from typing import Any

import pytest

from evertick import Run
from evertick.executor.handlers.hooks import HookCalls, Hooks

AT = datetime(2026, 6, 9, 12, tzinfo=UTC)


@pytest.mark.parametrize("is_async", [False, True])
async def test_a_hook_that_exits_ends_neither_the_worker_nor_the_hooks_after_it(
    caplog: pytest.LogCaptureFixture, *, is_async: bool
) -> None:
    caplog.set_level(logging.WARNING)
    told: list[BaseException] = []

    def leave(_: Run, error: BaseException) -> None:
        told.append(error)
        raise SystemExit(3)

    async def leave_async(run: Run, error: BaseException) -> None:
        leave(run, error)

    hooks = Hooks()
    hooks.on_failure.append(leave_async if is_async else leave)
    calls, attempt = HookCalls(hooks), _attempt()
    errors = [ValueError(number) for number in range(2)]
    for error in errors:
        calls.failed(attempt, AT, error)
        await calls.drain()
    assert told == errors
    assert caplog.text.count("raised; the outcome of the run stays as it is") == 2
    assert "not waited for" not in caplog.text


async def test_a_hook_that_is_cancelled_is_not_reported(caplog: pytest.LogCaptureFixture) -> None:
    hooks, is_called = Hooks(), asyncio.Event()

    async def wait(_: Run, __: BaseException) -> None:
        is_called.set()
        await asyncio.Event().wait()

    hooks.on_failure.append(wait)
    calls = HookCalls(hooks)
    before = asyncio.all_tasks()
    calls.failed(_attempt(), AT, ValueError("odd"))
    (task,) = asyncio.all_tasks() - before
    await is_called.wait()
    task.cancel()
    await calls.drain()
    assert task.cancelled()
    assert not caplog.text


def _attempt() -> Any:
    return None
