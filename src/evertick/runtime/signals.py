"""SIGTERM and SIGINT as an event to wait for: the first asks to stop in order, the second stops at once."""

import asyncio
import signal
from collections.abc import Iterator
from contextlib import contextmanager

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


@contextmanager
def stop_signal() -> Iterator[asyncio.Event]:
    """An event that the first signal sets; a second one has its usual effect."""
    loop = asyncio.get_running_loop()
    stopping = asyncio.Event()

    def ask() -> None:
        stopping.set()
        for number in _SIGNALS:
            loop.remove_signal_handler(number)

    for number in _SIGNALS:
        loop.add_signal_handler(number, ask)
    try:
        yield stopping
    finally:
        for number in _SIGNALS:
            loop.remove_signal_handler(number)
