"""Memory for answers that clients have not read yet. What is done is answered, whatever it takes; but who has much to
read gets no further requests done, tenant by tenant and, when all of it is much, by the same share as with bodies.
"""

from collections import Counter
from collections.abc import Callable
from functools import partial

from evertick.api.problems import over_limit
from evertick.domain.admission import QuotaName

MEBIBYTE = 1_048_576
PER_TENANT_BYTES = 32 * MEBIBYTE
"""When a tenant has more to read, it waits: requests that hold a slot by then add theirs."""
TOTAL_BYTES = 256 * MEBIBYTE
ALWAYS_BYTES = MEBIBYTE
"""So much every tenant may have to read, whatever others have."""
LARGE_BYTES = 65_536
"""What is shorter is not counted: a connection has one of them at a time."""
_RETRY_SECONDS = 2


class UnreadAnswers:
    """What all clients of one process have not read."""

    def __init__(self, per_tenant: int = PER_TENANT_BYTES, total: int = TOTAL_BYTES) -> None:
        self._per_tenant = per_tenant
        self._held: Counter[int] = Counter()
        self._free = total

    def check(self, tenant_id: int) -> None:
        """Refuse to do more for a tenant that has too much to read."""
        held = self._held.get(tenant_id, 0)
        if held > min(self._per_tenant, max(self._free, ALWAYS_BYTES)):
            detail = f"{held} bytes of answers to earlier requests are not read yet"
            raise over_limit(QuotaName.UNREAD_ANSWERS, detail, _RETRY_SECONDS)

    def hold(self, tenant_id: int, size: int) -> Callable[[], None] | None:
        """Count an answer, if it is large, until what is returned is called."""
        if size <= LARGE_BYTES:
            return None
        self._add(tenant_id, size)
        return partial(self._add, tenant_id, -size)

    def _add(self, tenant_id: int, size: int) -> None:
        self._held[tenant_id] += size
        self._free -= size
        if not self._held[tenant_id]:
            del self._held[tenant_id]
