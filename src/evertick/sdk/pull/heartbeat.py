"""Keeps what a remote worker has leased, from a thread of its own: a handler that blocks the loop must not lose it.

It names what the worker holds, even what has ended and is yet to be told: a lease whose answer got lost is not among
that, and has to run out. As in `roles.worker`, the loop is trusted only so far: one that hangs is not kept alive for
ever.
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping

from evertick.client import ApiError, Client
from evertick.roles.worker.heartbeat import MARGIN_SECONDS
from evertick.roles.worker.holdings import Holdings, Lease
from evertick.sdk.pull.patience import Patience

logger = logging.getLogger("evertick.worker")

LONGEST_PAUSE = 5.0
"""A cancelled run goes on for at most that long."""
SHORTEST_PAUSE = 0.05
ANSWER_SECONDS = 10.0
MAX_TOKENS = 10_000
UNAVAILABLE = 503


class Heartbeat:
    """Beats while anything is held, three times in each lease. `tokens` are by lease; `untold` have ended.

    `is_put_off`: the last beat reached the server, which could not answer for its database.
    """

    def __init__(
        self,
        client: Client,
        worker_id: str,
        holdings: Holdings,
        tokens: Mapping[int, str],
        untold: Callable[[], list[str]],
    ) -> None:
        self._lease_seconds = 3 * LONGEST_PAUSE  # until the server says
        self._client = client
        self._worker_id = worker_id
        self._holdings = holdings
        self._tokens = tokens
        self._untold = untold
        self._seen = time.monotonic()
        self._patience = Patience("heartbeat")
        self.is_put_off = False
        self._is_stopping = False
        self._roused = threading.Event()
        self._thread = threading.Thread(target=self._main, name="evertick-heartbeat", daemon=True)

    def start(self) -> None:
        self.alive()
        self._thread.start()

    def alive(self) -> None:
        """The worker's loop turns."""
        self._seen = time.monotonic()

    def lasts(self, lease_seconds: float) -> None:
        """The server said for how long it leases. If that is new, the pause under way may be too long."""
        if lease_seconds != self._lease_seconds:
            self._lease_seconds = lease_seconds
            self._roused.set()

    def stop(self) -> None:
        """Beat no more. Blocks while a beat is under way."""
        self._is_stopping = True
        self._roused.set()
        self._thread.join()

    def _main(self) -> None:
        pause = LONGEST_PAUSE
        while True:
            self._roused.wait(pause)
            self._roused.clear()
            if self._is_stopping:
                return
            pause = self._step()

    def _step(self) -> float:
        """Beat, and say how long to wait until the next."""
        usual = max(SHORTEST_PAUSE, min(LONGEST_PAUSE, self._lease_seconds / 3))
        try:
            self._beat()
        except ApiError as error:
            self.is_put_off = error.status == UNAVAILABLE
            return min(self._patience.failed(error), usual)
        except Exception:
            logger.exception("a heartbeat failed")
            return usual
        self.is_put_off = False
        self._patience.succeeded()
        return usual

    def _beat(self) -> None:
        held = self._holdings.snapshot()
        silence = time.monotonic() - self._seen
        if silence > max((lease.longest for lease in held), default=0) + MARGIN_SECONDS:
            logger.error("the event loop has not turned for %.0f s: what is leased is left to run out", silence)
            return
        running = {token: lease for lease in held if (token := self._tokens.get(lease.lease_id)) is not None}
        named = [*running, *self._untold()]
        for first in range(0, len(named), MAX_TOKENS):
            self._keep(named[first : first + MAX_TOKENS], running)

    def _keep(self, tokens: list[str], running: Mapping[str, Lease]) -> None:
        asked = time.monotonic()
        stopped = set(self._client.workers.heartbeat(self._worker_id, tokens).cancel)
        for lease in (running[token] for token in tokens if token in running):
            lease.expires = asked + self._lease_seconds
        for lease in (running[token] for token in stopped if token in running):
            lease.is_lost = True
