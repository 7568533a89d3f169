"""How long to leave a server alone that cannot be reached or asks for it."""

import logging
import random

from evertick.client.errors import ApiError

logger = logging.getLogger("evertick.worker")

FIRST_PAUSE = 0.2
LONGEST_PAUSE = 15.0


class Patience:
    """Doubles with each failure in a row. The first of them is logged, and the end of them."""

    def __init__(self, subject: str) -> None:
        self._subject = subject
        self._failures = 0

    def succeeded(self) -> None:
        if self._failures:
            logger.info("%s: works again", self._subject)
        self._failures = 0

    def failed(self, error: ApiError) -> float:
        """How many seconds to wait before the next try."""
        if not self._failures:
            logger.warning("%s: %s; it is tried again until it works", self._subject, error)
        pause = min(FIRST_PAUSE * 2.0 ** min(self._failures, 16), LONGEST_PAUSE)
        self._failures += 1
        asked = min(error.retry_after or 0.0, LONGEST_PAUSE)
        return asked + pause * random.uniform(0.5, 1.0)  # noqa: S311 - so that workers do not come back as one
