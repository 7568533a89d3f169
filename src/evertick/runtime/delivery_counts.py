"""What the dispatchers of this process have done, for its metrics."""

from collections import Counter
from enum import StrEnum


class DeliveryEvent(StrEnum):
    """What happens to the deliveries to a host. Counted by dispatchers."""

    CIRCUIT_OPENED = "circuit_opened"  # the host failed too often
    CIRCUIT_CLOSED = "circuit_closed"  # a probe succeeded
    PROBE = "probe"  # a delivery to a host that fails, to find out whether it works again
    CIRCUIT_DEFERRED = "circuit_deferred"  # put back because the circuit is open
    RATE_DEFERRED = "rate_deferred"  # put back because the host's rate is used up


deliveries: Counter[DeliveryEvent] = Counter()
