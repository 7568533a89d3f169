"""How a number of places is shared among tenants when no place can be taken back from whoever has it.

A webhook whose target hangs keeps its place until its time-out. Being fair on average is therefore not enough: at every
moment a place must be left for each tenant that has fewer than its part.
"""

BORROWING_FACTOR = 2
"""A tenant may have borrowed this many times the places that are left to borrow."""


class Places:
    """`total` places, of which each tenant may have `most_each`.

    1. Half of the places are guaranteed, in equal parts, at least one for each tenant.
    2. A tenant that has fewer places than its part may take any free one.
    3. Beyond its part it borrows. Free places remain for all parts that others have not taken (half of the places, if
       there are more tenants than that), and it may not have borrowed more than `BORROWING_FACTOR` times what then
       remains to be borrowed.
    4. Where there is one tenant, it may have all places.

    So a tenant always gets its part at once, whatever the others do and in whichever order they came, as long as there
    are at most half as many tenants as places.
    """

    def __init__(self, total: int, most_each: int | None = None, tenants: int = 1) -> None:
        self.total = total
        self.free = total
        self.most_each = total if most_each is None else most_each
        self._held: dict[int, int] = {}
        self._share_among(tenants)

    def __len__(self) -> int:
        """How many tenants have a place."""
        return len(self._held)

    @property
    def tenants(self) -> int:
        return self._tenants

    @tenants.setter
    def tenants(self, tenants: int) -> None:
        if tenants != self._tenants:
            self._share_among(tenants)

    @property
    def part(self) -> int:
        """How many places each tenant is sure of."""
        return self._part

    def held(self, tenant_id: int) -> int:
        return self._held.get(tenant_id, 0)

    def may_take(self, tenant_id: int) -> bool:
        if not self.free:
            return False
        held = self._held.get(tenant_id, 0)
        if held >= self.most_each:
            return False
        if held < self._part or self._tenants <= 1:
            return True
        return held - self._part < BORROWING_FACTOR * (self.free - self._owed(self._untaken))

    def most(self, tenant_id: int) -> int:
        """How many places the tenant would have if it took all that it may now."""
        held = self._held.get(tenant_id, 0)
        if self._tenants <= 1:
            return max(held, min(held + self.free, self.most_each))
        own_part = min(max(self._part - held, 0), self.free)
        lendable = self.free - own_part - self._owed(self._untaken - own_part)
        borrowed = max(held - self._part, 0)
        more = max(-(-(BORROWING_FACTOR * lendable - borrowed) // (BORROWING_FACTOR + 1)), 0)
        return max(held, min(held + own_part + more, self.most_each))

    def take(self, tenant_id: int) -> None:
        """Take a place that the tenant may take."""
        held = self._held.get(tenant_id, 0)
        self._held[tenant_id] = held + 1
        self.free -= 1
        if held < self._part:
            self._untaken -= 1

    def give_back(self, tenant_id: int) -> None:
        held = self._held[tenant_id] - 1
        if held:
            self._held[tenant_id] = held
        else:
            del self._held[tenant_id]
        self.free += 1
        if held < self._part:
            self._untaken += 1

    def _owed(self, untaken: int) -> int:
        """How many free places are for tenants that have fewer than their part."""
        return min(untaken, self.total // 2)

    def _share_among(self, tenants: int) -> None:
        self._tenants = tenants
        self._part = min(max(self.total // 2 // max(tenants, 1), 1), self.most_each)
        self._untaken = max(tenants * self._part - sum(min(held, self._part) for held in self._held.values()), 0)
