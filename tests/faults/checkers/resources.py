"""C8: memory, connections, file descriptors and dead tuples are bounded: what a fault took is given back."""

from collections.abc import Mapping
from dataclasses import dataclass

from faults.checkers.verdict import Verdict


@dataclass(frozen=True, slots=True)
class Allowance:
    """How much a resource may be afterwards: a multiple of what it was before, and a constant."""

    factor: float
    constant: int

    def bound(self, before: int) -> int:
        return int(before * self.factor) + self.constant


ALLOWANCES = {
    "memory_kb": Allowance(1.5, 64 * 1024),
    "descriptors": Allowance(1.5, 16),
    "connections": Allowance(1.5, 10),
    "dead_tuples": Allowance(2, 20_000),
}
"""By the last word of a resource's name. The constants are what caches, pools and vacuum keep in reserve."""


def resources_bounded(before: Mapping[str, int], after: Mapping[str, int]) -> Verdict:
    """Nothing grew beyond its allowance from before the fault to after healing, and all of it was measured.

    A name such as `scheduler memory_kb` says of what, and what.
    """
    faults: list[str] = []
    for name in sorted({*before, *after}):
        if name not in before or name not in after:
            faults.append(f"{name}: measured on one side only")
            continue
        bound = ALLOWANCES[name.rpartition(" ")[2]].bound(before[name])
        if after[name] > bound:
            faults.append(f"{name}: {before[name]} before, {after[name]} after, the bound is {bound}")
    return Verdict("C8 resources", tuple(faults), {name.replace(" ", "_"): after[name] for name in sorted(after)})
