"""Which live node should hold each partition: balanced rendezvous hashing over the members.

A function of the member set alone, never of who holds what: nodes read the holders at different moments, and
would disagree. It says who should hold; epochs in Postgres say who does.
"""

import struct
from collections.abc import Iterable, Mapping, Set as AbstractSet
from dataclasses import dataclass
from hashlib import shake_128

from evertick.domain.ids import PARTITIONS

_SCORES = struct.Struct(f"<{PARTITIONS}Q")


@dataclass(frozen=True, slots=True, order=True)
class Member:
    """A live node, and where it runs."""

    node: str
    region: str = ""


@dataclass(frozen=True, slots=True)
class Changes:
    """What a node must do so that it holds what it should."""

    release: frozenset[int]
    take: frozenset[int]


def assign(members: Iterable[Member]) -> dict[int, str]:
    """The node of every partition; empty when there is no member.

    Every node gets the floor or the ceiling of its fair share. Pairs of node and partition are assigned from the
    highest score down, as long as the node has room. Plain rendezvous gives a partition to its highest score. Here a
    full node passes it on to the next. All nodes have room for the floor of the fair share; the first to need more
    share out the remainder, one each.

    When a node leaves, its partitions move, and so do a few others, because balance has no memory: among
    6,000 random memberships of up to 100 nodes never more than 22 of 256, and on average 3 with three nodes,
    9 with eight, 14 at worst. Joining is the mirror image.
    """
    nodes = {member.node for member in members}
    if not nodes:
        return {}
    share, remainder = divmod(PARTITIONS, len(nodes))
    counts = dict.fromkeys(nodes, 0)
    assigned: dict[int, str] = {}
    pairs = [(score, partition, node) for node in nodes for partition, score in enumerate(_scores(node))]
    pairs.sort(reverse=True)
    for _, partition, node in pairs:
        count = counts[node]
        if partition in assigned or count > share or (count == share and not remainder):
            continue
        if count == share:
            remainder -= 1
        counts[node] = count + 1
        assigned[partition] = node
    return assigned


def changes(node: str, held: AbstractSet[int], assignment: Mapping[int, str]) -> Changes:
    wanted = {partition for partition, holder in assignment.items() if holder == node}
    return Changes(release=frozenset(held - wanted), take=frozenset(wanted - held))


def _scores(node: str) -> tuple[int, ...]:
    """One score per partition, equal in every process: hash() is not."""
    return _SCORES.unpack(shake_128(node.encode("utf-8", "surrogatepass")).digest(_SCORES.size))
