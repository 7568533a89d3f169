"""Memory for responses that clients have not read yet, bounded for each tenant and for the process.

A request that was done is answered in any case. A tenant with too many unread bytes gets no further requests done; the
bound of the process is shared among tenants as that of bodies is.
"""

from collections import Counter
from collections.abc import Callable
from functools import partial

from evertick.api.problems import over_limit
from evertick.domain.admission import QuotaName

MEBIBYTE = 1_048_576
PER_TENANT_BYTES = 32 * MEBIBYTE
"""With more than that, requests are refused, except for those that hold a slot by then."""
TOTAL_BYTES = 256 * MEBIBYTE
ALWAYS_BYTES = MEBIBYTE
"""Every tenant may have so much unread, whatever others have."""
LARGE_BYTES = 65_536
"""Shorter responses are not counted: a connection has one of them at a time."""
_RETRY_SECONDS = 2


class UnreadResponses:
    """The unread responses of one process."""

    def __init__(self, per_tenant: int = PER_TENANT_BYTES, total: int = TOTAL_BYTES) -> None:
        self._per_tenant = per_tenant
        self._held: Counter[int] = Counter()
        self._free = total

    def check(self, tenant_id: int) -> None:
        """Refuse to do more for a tenant that has too much unread."""
        held = self._held.get(tenant_id, 0)
        if held > min(self._per_tenant, max(self._free, ALWAYS_BYTES)):
            detail = f"{held} bytes of answers to earlier requests are not read yet"
            raise over_limit(QuotaName.UNREAD_ANSWERS, detail, _RETRY_SECONDS)

    def hold(self, tenant_id: int, size: int) -> Callable[[], None] | None:
        """Count a response, if it is large, until the returned function is called."""
        if size <= LARGE_BYTES:
            return None
        self._add(tenant_id, size)
        return partial(self._add, tenant_id, -size)

    def _add(self, tenant_id: int, size: int) -> None:
        self._held[tenant_id] += size
        self._free -= size
        if not self._held[tenant_id]:
            del self._held[tenant_id]
