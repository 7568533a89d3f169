"""Hooks: users' functions that are told of failed attempts and of runs that died. They decide nothing: whatever one
raises is logged, and one that is slow delays no outcome.

An async hook is a task on the worker's event loop. The others are called one after the other in a thread of their own.
"""

import asyncio
import inspect
import logging
import queue
import threading
from collections.abc import Callable, Collection, Iterable
from datetime import datetime
from typing import Any, NamedTuple

from evertick.domain.attempt import Attempt, Token
from evertick.domain.errors import InvalidInput
from evertick.executor.handlers.run import Run

logger = logging.getLogger("evertick.worker")

Hook = Callable[[Run, BaseException], Any]
MAX_WAITING = 1000
"""Calls that are under way or wait. Beyond that hooks are not called, since they do not keep up with failures."""
HOOK_SECONDS = 30.0
"""What an async hook may take."""
STOP_SECONDS = 5.0
"""How long a worker that stops waits for hooks."""


class Hooks:
    """The hooks of an app."""

    def __init__(self) -> None:
        self.on_failure: list[Hook] = []
        self.on_dead: list[Hook] = []

    def __bool__(self) -> bool:
        return bool(self.on_failure or self.on_dead)


class _Failure(NamedTuple):
    run: Run
    error: BaseException


class HookCalls:
    """Calls the hooks of a worker. All methods but the thread's own run on its event loop."""

    def __init__(self, hooks: Hooks) -> None:
        self._hooks = hooks
        self._unrecorded: dict[Token, _Failure] = {}  # of which it is not known yet whether their run died
        self._tasks: set[asyncio.Task[None]] = set()
        self._calls: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._in_thread = 0
        self._thread: threading.Thread | None = None
        self._idle = asyncio.Event()
        self._idle.set()
        self._is_behind = False

    def failed(self, attempt: Attempt, started_at: datetime, error: BaseException) -> None:
        """An attempt failed."""
        if self._hooks:
            failure = _Failure(Run(attempt, started_at), error)
            self._call_all(self._hooks.on_failure, failure)
            if self._hooks.on_dead:
                self._unrecorded[attempt.token] = failure

    def died(self, tokens: Iterable[Token]) -> None:
        """These attempts were recorded as the last ones of their runs."""
        for token in tokens:
            if (failure := self._unrecorded.pop(token, None)) is not None:
                self._call_all(self._hooks.on_dead, failure)

    def recorded(self, tokens: Iterable[Token], busy: Collection[Token]) -> None:
        """Nothing more is to be learnt of these, but for those that are busy."""
        if self._unrecorded:
            for token in tokens:
                if token not in busy:
                    self._unrecorded.pop(token, None)

    async def drain(self) -> None:
        """Wait until all have been called, but not for long."""
        try:
            async with asyncio.timeout(STOP_SECONDS):
                await self._idle.wait()
        except TimeoutError:
            logger.warning("%d hooks have not returned yet, and are not waited for", self._under_way)

    @property
    def _under_way(self) -> int:
        return len(self._tasks) + self._in_thread

    def _call_all(self, hooks: Iterable[Hook], failure: _Failure) -> None:
        for hook in hooks:
            if self._under_way >= MAX_WAITING:
                if not self._is_behind:
                    logger.warning("hooks do not keep up with failures: some are not called")
                self._is_behind = True
                return
            self._is_behind = False
            self._idle.clear()
            if inspect.iscoroutinefunction(hook):
                task = asyncio.get_running_loop().create_task(_call(hook, failure))
                self._tasks.add(task)
                task.add_done_callback(self._task_done)
            else:
                self._call_in_thread(hook, failure)

    def _call_in_thread(self, hook: Hook, failure: _Failure) -> None:
        loop = asyncio.get_running_loop()

        def call() -> None:
            try:
                hook(*failure)
            except BaseException as error:  # noqa: BLE001 - even SystemExit ends a hook only
                _report(hook, error)
            finally:
                loop.call_soon_threadsafe(self._thread_done)

        self._in_thread += 1
        self._calls.put(call)
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="evertick-hooks", daemon=True)
            self._thread.start()

    def _work(self) -> None:
        while True:
            try:
                self._calls.get()()
            except RuntimeError:  # the loop is closed
                return

    def _task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._note_idleness()

    def _thread_done(self) -> None:
        self._in_thread -= 1
        self._note_idleness()

    def _note_idleness(self) -> None:
        if not self._under_way:
            self._idle.set()


async def _call(hook: Hook, failure: _Failure) -> None:
    try:
        async with asyncio.timeout(HOOK_SECONDS):
            await hook(*failure)
    except asyncio.CancelledError:
        raise
    except BaseException as error:  # noqa: BLE001 - even SystemExit ends a hook only
        _report(hook, error)


def _report(hook: Hook, error: BaseException) -> None:
    name = getattr(hook, "__name__", repr(hook))
    logger.error("hook %s raised; the outcome of the run stays as it is", name, exc_info=error)


def checked_hook(hook: Hook) -> Hook:
    """Refuse what cannot be called with a run and an error."""
    try:
        inspect.signature(hook).bind(None, None)
    except (TypeError, ValueError):
        name = getattr(hook, "__name__", repr(hook))
        raise InvalidInput("hook", f"{name!r} must take two arguments, the run and the error") from None
    return hook
