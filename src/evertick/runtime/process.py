"""What a process of Evertick sets up at its start: stop signals, the limit of open files, the garbage collector."""

import asyncio
import gc
import math
import resource
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from evertick.domain.errors import EvertickError

MAX_DESCRIPTORS = 65_536
"""Enough for any process of Evertick. Some hard limits are a billion, and programs that a process starts may go through
all descriptors up to the limit."""
GC_THRESHOLD = 3_000
"""New objects between two collections of the youngest, instead of 700: a batch of timers or attempts is tens of
thousands. Not many more: an error that a handler keeps in a variable is a cycle, and may hold a payload."""
REPEAT_SECONDS = 1.0
"""A signal to a process group arrives twice where a parent, such as make, passes it on: that is one request to stop."""
_SIGNALS = (signal.SIGTERM, signal.SIGINT)
INTERRUPTED = 130
"""The exit code of a process that Ctrl-C ended."""
_hurries: set[Callable[[], None]] = set()


class CannotListen(EvertickError):  # noqa: N818 - says what is wrong
    """The address is taken, or not ours."""


@contextmanager
def stop_signal() -> Iterator[asyncio.Event]:
    """An event that the first SIGTERM or SIGINT sets.

    A later one, after `REPEAT_SECONDS`, hurries what waits for the end of something (`hurried`). If nothing does, and
    the next time in any case, it stops the process at once.
    """
    loop = asyncio.get_running_loop()
    stopping = asyncio.Event()
    earlier = math.inf
    is_hurried = False

    def restore() -> None:
        for number in _SIGNALS:
            loop.remove_signal_handler(number)
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)

    def stop() -> None:
        nonlocal earlier
        stopping.set()
        earlier = time.monotonic()
        for number in _SIGNALS:
            loop.remove_signal_handler(number)
            signal.signal(number, repeat)  # not by the loop, which may hang by then

    def repeat(number: int, _: object) -> None:
        nonlocal earlier, is_hurried
        if time.monotonic() - earlier < REPEAT_SECONDS:
            return
        if _hurries and not is_hurried:
            is_hurried, earlier = True, time.monotonic()
            loop.call_soon_threadsafe(_hurry)
            return
        restore()
        signal.raise_signal(number)

    for number in _SIGNALS:
        loop.add_signal_handler(number, stop)
    try:
        yield stopping
    finally:
        restore()


@contextmanager
def hurried(call: Callable[[], None]) -> Iterator[None]:
    """For the duration of the block, a second signal calls this, on the event loop, instead of ending the process."""
    _hurries.add(call)
    try:
        yield
    finally:
        _hurries.discard(call)


def _hurry() -> None:
    for call in list(_hurries):
        call()


@contextmanager
def quiet_interrupt() -> Iterator[None]:
    """End the process by Ctrl-C without a traceback."""
    try:
        yield
    except KeyboardInterrupt:
        raise SystemExit(INTERRUPTED) from None


def raise_descriptor_limit() -> int:
    """Raise the soft limit of open files, usually 1,024, as far as the system allows; returns the limit in force."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MAX_DESCRIPTORS)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return descriptor_limit()
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return wanted


def descriptor_limit() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MAX_DESCRIPTORS if soft == resource.RLIM_INFINITY else soft


def expect_batches() -> None:
    """Collect garbage less often, and exclude all objects that exist now from collection.

    In a process that runs roles objects come and go by the batch, and hardly any form cycles.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(GC_THRESHOLD, 5, 10)
