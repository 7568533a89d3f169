"""What a receiver of webhooks remembers between deliveries: which keys are done, which attempt was the latest."""

import threading
from collections import OrderedDict
from typing import Protocol


class Memory(Protocol):
    """A receiver's memory. Several processes that receive for one job must share one, such as a table or Redis."""

    def is_done(self, idempotency_key: str) -> bool: ...

    def set_done(self, idempotency_key: str) -> None: ...

    def advance(self, subject: str, token: int) -> bool:
        """Whether the token is larger than all that `subject` has shown; then it is kept, in one step."""


class RecentMemory:
    """A memory inside this process, of the latest keys and subjects; safe to use from several threads."""

    def __init__(self, most: int = 100_000) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._done: OrderedDict[str, None] = OrderedDict()
        self._tokens: OrderedDict[str, int] = OrderedDict()

    def is_done(self, idempotency_key: str) -> bool:
        return idempotency_key in self._done

    def set_done(self, idempotency_key: str) -> None:
        with self._lock:
            self._done[idempotency_key] = None
            if len(self._done) > self._most:
                self._done.popitem(last=False)

    def advance(self, subject: str, token: int) -> bool:
        with self._lock:
            if token <= self._tokens.get(subject, -1):
                return False
            self._tokens[subject] = token
            self._tokens.move_to_end(subject)
            if len(self._tokens) > self._most:
                self._tokens.popitem(last=False)
        return True
