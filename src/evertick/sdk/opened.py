"""What an App has open in one process: its server, a connection for each event loop, and a loop for sync code.

A forked child has copies of the parent's sockets, locks and loops, and none of its threads. It uses none of them,
begins with nothing open, and connects by itself. The copies stay in memory: closing a connection would tell the server
that the parent goes, and closing a loop would change the epoll that the parent waits on.
"""

import asyncio
import os
import threading
import weakref
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from evertick.sdk.process import AppConnection, AppServer

_T = TypeVar("_T")
_everyone: "weakref.WeakSet[Opened]" = weakref.WeakSet()
_of_parents: list[dict[str, Any]] = []


class Opened:
    """What is open in this process."""

    server: "AppServer | None"
    connections: "dict[asyncio.AbstractEventLoop, asyncio.Task[AppConnection]]"
    _loop_thread: "LoopThread | None"
    _lock: threading.Lock

    def __init__(self) -> None:
        self._begin()
        _everyone.add(self)

    def _begin(self) -> None:
        self.server = None
        self.connections = {}
        self._loop_thread = None
        self._lock = threading.Lock()

    def forked(self) -> None:
        """In a child that was forked: leave all of it to the parent."""
        _of_parents.append(dict(self.__dict__))
        if self.server is not None:
            self.server.forget()
        self._begin()

    def loop_thread(self) -> "LoopThread":
        """The loop for sync code, started at the first call."""
        with self._lock:
            if self._loop_thread is None:
                self._loop_thread = LoopThread()
            return self._loop_thread

    def take_loop_thread(self) -> "LoopThread | None":
        """Whoever takes it closes it."""
        with self._lock:
            thread, self._loop_thread = self._loop_thread, None
            return thread

    @property
    def has_loop_thread(self) -> bool:
        return self._loop_thread is not None


def _forked() -> None:
    for opened in list(_everyone):
        opened.forked()


os.register_at_fork(after_in_child=_forked)


class LoopThread:
    """An event loop in a thread of its own, on which sync code calls async functions, until `close`."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="evertick-submit", daemon=True)
        self._thread.start()

    def call(self, work: Coroutine[Any, Any, _T]) -> _T:
        running = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return running.result()
        except BaseException:  # Ctrl-C, perhaps: nobody waits for it any more
            running.cancel()
            raise

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


def refuse_on_loop(instead: str) -> None:
    """Raise RuntimeError on an event loop: a loop that waits for itself never ends."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise RuntimeError(f"this is async code: {instead}")
