"""Middleware: users' functions around the call of a handler.

Each gets the run and a function `call_next`, which goes on to the next one and at last to the handler. The one that was
added first is the outermost. An async one wraps every handler; for a handler in a thread it runs on the worker's event
loop, and what it wraps stays in the thread. One that is not async wraps only handlers in threads, and runs there.
"""

import asyncio
import contextvars
import inspect
import queue
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple

from evertick.executor.handlers.run import Run


class Middleware(NamedTuple):
    """A function around handlers: `def wrap(run, call_next)`, or `async def`."""

    function: Callable[..., Any]

    @property
    def name(self) -> str:
        return getattr(self.function, "__name__", repr(self.function))

    @property
    def is_async(self) -> bool:
        return inspect.iscoroutinefunction(self.function)


async def call_async(middleware: Sequence[Middleware], run: Run, call: Callable[[], Awaitable[Any]]) -> Any:
    """Call an async handler inside those that are async."""
    for each in reversed(middleware):
        if each.is_async:
            call = _around(each, run, call)
    return await call()


def _around(middleware: Middleware, run: Run, call: Callable[[], Any]) -> Callable[[], Any]:
    return lambda: middleware.function(run, call)


def call_in_thread(
    middleware: Sequence[Middleware], run: Run, call: Callable[[], Any], loop: asyncio.AbstractEventLoop | None
) -> Any:
    """Call a handler in this thread, inside all of them. `loop` is the worker's."""
    for each in reversed(middleware):
        call = _bridged(each, run, call, loop) if each.is_async else _around(each, run, call)
    return call()


def _bridged(
    middleware: Middleware, run: Run, call: Callable[[], Any], loop: asyncio.AbstractEventLoop | None
) -> Callable[[], Any]:
    assert loop is not None, "a handler is called in a thread of a worker, which has a loop"
    return lambda: _Bridge(loop).cross(middleware, run, call)


class _Order(NamedTuple):
    """The middleware goes on: call in this context, and answer."""

    context: contextvars.Context
    answer: asyncio.Future[Any]


class _Ended(NamedTuple):
    value: Any
    error: BaseException | None


class _Bridge:
    """An async function on a loop, which waits for what this thread calls for it."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._orders: queue.SimpleQueue[_Order | asyncio.Task[_Ended]] = queue.SimpleQueue()

    def cross(self, middleware: Middleware, run: Run, call: Callable[[], Any]) -> Any:
        context = contextvars.copy_context()

        def start() -> None:
            task = self._loop.create_task(_ended(middleware, run, self._call_next), context=context)
            task.add_done_callback(self._orders.put)

        self._loop.call_soon_threadsafe(start)
        while isinstance(order := self._orders.get(), _Order):
            try:
                value = order.context.run(call)
            except BaseException as error:  # noqa: BLE001 - it goes on in the middleware
                self._loop.call_soon_threadsafe(_settle, order.answer, None, error)
            else:
                self._loop.call_soon_threadsafe(_settle, order.answer, value, None)
        value, failure = order.result()
        if failure is not None:
            raise failure
        return value

    async def _call_next(self) -> Any:
        answer: asyncio.Future[Any] = self._loop.create_future()
        # Context variables that the middleware has set are seen by what it wraps.
        self._orders.put(_Order(contextvars.copy_context(), answer))
        return await answer


async def _ended(middleware: Middleware, run: Run, call_next: Callable[[], Awaitable[Any]]) -> _Ended:
    """What a middleware returned or raised. A task that raises SystemExit would end the loop of all others."""
    try:
        return _Ended(await middleware.function(run, call_next), None)
    except asyncio.CancelledError:
        raise
    except BaseException as error:  # noqa: BLE001 - it goes on in the thread
        return _Ended(None, error)


def _settle(answer: asyncio.Future[Any], value: Any, error: BaseException | None) -> None:
    if answer.done():  # the middleware does not wait any more
        return
    if error is None:
        answer.set_result(value)
    elif isinstance(error, StopIteration):  # a future refuses it
        answer.set_exception(RuntimeError("the handler raised StopIteration"))
    else:
        answer.set_exception(error)
