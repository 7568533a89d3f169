"""Handlers that run inside of something of a framework: its application context, its database connections."""

import functools
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Any

from evertick.executor.handlers.registry import Function, FunctionHandler, Handlers


class HandlersInside(Handlers):
    """Each call is made inside of a context: `entered` for functions, `entered_async` for async ones."""

    def __init__(
        self,
        entered: Callable[[], AbstractContextManager[Any]],
        entered_async: Callable[[], AbstractAsyncContextManager[Any]],
    ) -> None:
        super().__init__()
        self._entered = entered
        self._entered_async = entered_async

    def add(self, name: str, function: Function) -> None:
        is_async = FunctionHandler(name, function).is_async  # which refuses what cannot be a handler
        super().add(name, self._async_inside(function) if is_async else self._inside(function))

    def _inside(self, function: Function) -> Function:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            with self._entered():
                return function(*args, **kwargs)

        return call

    def _async_inside(self, function: Function) -> Function:
        @functools.wraps(function)
        async def call(*args: Any, **kwargs: Any) -> Any:
            async with self._entered_async():
                return await function(*args, **kwargs)

        return call
