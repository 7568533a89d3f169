"""What this node believes to hold: the epoch of each partition, and the seq after which its next attempts go on."""

import asyncio
from dataclasses import dataclass, field


@dataclass(slots=True)
class Holdings:
    """A belief: each statement that writes has it checked against the `partitions` table.

    `writing` is held while a firing is under way. Seqs must reach each lane in their order, so there is one at a time,
    and partitions are given up only in between. `in_doubt`: a firing was sent and its end is unknown. It may still be
    under way in the server, so nothing is fired until new epochs have fenced it off.
    """

    epochs: dict[int, int] = field(default_factory=dict)
    last_seq: int = 0
    in_doubt: bool = False
    writing: asyncio.Lock = field(default_factory=asyncio.Lock)

    def gain(self, epochs: dict[int, int], last_seq: int) -> None:
        self.epochs |= epochs
        self.last_seq = max(self.last_seq, last_seq)

    def drop(self, partitions: set[int]) -> None:
        for partition in partitions:
            self.epochs.pop(partition, None)
