"""Says that attempts came for which no handler is here: once for each handler, so that nobody overlooks it."""

import logging
from collections.abc import Callable, Sequence
from itertools import groupby

from evertick.store.lanes import Leased

logger = logging.getLogger("evertick.worker")


def warn_of_unknown(attempts: Sequence[Leased], warned: set[str | None], queue_name: Callable[[int], str]) -> None:
    """Warn of the handlers that these attempts need, except of those that were `warned` of before."""
    news = sorted((each for each in attempts if each.handler not in warned), key=lambda each: each.handler or "")
    for handler, group in groupby(news, key=lambda each: each.handler):
        waiting = list(group)
        warned.add(handler)
        logger.warning(
            "no handler %r on queue %r: %d attempts wait for a worker that has it",
            handler,
            queue_name(waiting[0].lane_id),
            len(waiting),
        )
