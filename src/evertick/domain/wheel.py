"""The scheduler's pending timers by due time: a hierarchical timing wheel (Varghese & Lauck, 1987).

Owns their order and nothing else: the caller brings the time, and Postgres stays the truth about each timer.
A million entries take 145 to 161 bytes each; docs/decisions/0002-timing-wheel.md has the layout and its reasons.
"""

from collections import deque
from collections.abc import Iterable
from heapq import heapify, heappop, heappush
from typing import TypeAlias

SLOTS = 1_024  # in the ring of each level
STEP = 9  # a slot is 2**9 slots of the level below: half that ring, so all of it fits there ahead of time
BATCH = 1_024  # entries that a level cascades ahead per turn, about a millisecond's work

Slot: TypeAlias = dict[int, int]  # key → due_us
WheelEntry: TypeAlias = tuple[int, int]  # (key, due_us)
Due: TypeAlias = tuple[int, int]  # (due_us, key): sorts by time


class Wheel:
    """Keys with one due time each, in microseconds since the epoch; they leave in order of (due time, key).

    Time is cut into ticks, and the wheel stands at one of them. What is due in a later tick waits in a slot,
    on a level chosen by its distance: level 0 has a slot per tick, each further level slots 512 times as wide,
    whose entries cascade to narrower ones as their time comes. What is due in the current tick or before it is
    *near*, and held in exact order. So no entry leaves early, not even within its tick: the length of a tick
    decides what the wheel costs, not how precise it is. What the wheel has turned past is *over*: slots that stay as
    they are until what is in them is taken.
    """

    __slots__ = ("_dues", "_heap", "_levels", "_near", "_over", "_over_us", "_tick", "_tick_us")

    def __init__(self, now_us: int, tick_us: int = 1_000) -> None:
        if tick_us < 1:
            raise ValueError(f"tick_us must be at least 1, not {tick_us}")
        self._tick_us = tick_us
        self._tick = now_us // tick_us
        self._dues: dict[int, int] = {}  # every entry; each is also in exactly one slot, or near
        self._levels: list[_Level] = []  # as many as the farthest entry needs
        self._near: Slot = {}
        self._heap: list[Due] = []  # a heap over _near; what has left _near meanwhile is skipped
        self._over: deque[Slot] = deque()
        self._over_us = (0, 0)  # no entry in there is due before the one, nor after the other

    def __len__(self) -> int:
        return len(self._dues)

    def add(self, key: int, due_us: int) -> None:
        """Let the key be due at `due_us`, past or future; a key that is already here moves."""
        if self._note(key, due_us):
            self._place(((key, due_us),))

    def add_many(self, entries: Iterable[WheelEntry]) -> None:
        """Add each (key, due_us), in about a quarter less time than one by one."""
        note = self._note
        # Lazily: a key that comes twice has to be placed before it can move.
        self._place(entry for entry in entries if note(*entry))

    def cancel(self, key: int) -> bool:
        """Remove the key, and say whether it was here."""
        due_us = self._dues.pop(key, None)
        if due_us is None:
            return False
        self._unplace(key, due_us)
        return True

    def advance(self, now_us: int, most: int | None = None) -> list[Due]:
        """Remove and return all that is due at `now_us` or before, as (due_us, key) in that order.

        With `most`, no more than that: slots that were passed first leave first, each in any order. So it costs what
        leaves and cascades, however long ago the last call was and however much is due at one instant. A `now_us`
        before an earlier one is safe: the wheel does not turn back, but what is due after `now_us` stays.
        """
        tick = now_us // self._tick_us
        if tick > self._tick:
            self._turn(tick, now_us)
        elif self._over and now_us < self._over_us[1]:
            self._recall()
        due = self._pop_over(most)
        due += self._pop_near(now_us, None if most is None else most - len(due))
        dues = self._dues
        for _, key in due:
            del dues[key]
        if most is None:
            due.sort()
        return due

    def next_due(self) -> int | None:
        """When to call `advance` next: never after the earliest due time. None while nothing waits.

        It is the exact due time of the earliest entry if that is near, else the start of the earliest slot in
        use. A caller that advances to each answer in turn wakes for an entry at most once per level (for the coming
        year: four) before waking when it is due.
        """
        if self._over:
            return self._over_us[0]
        heap, near = self._heap, self._near
        while heap:
            due_us, key = heap[0]
            if near.get(key) == due_us:
                return due_us
            heappop(heap)
        starts = [start for level in self._levels if (start := level.first_start()) is not None]
        return min(starts) * self._tick_us if starts else None

    def _note(self, key: int, due_us: int) -> bool:
        """Record the due time, and say whether the key now waits to be placed."""
        old_due_us = self._dues.get(key)
        if old_due_us == due_us:
            return False
        if old_due_us is not None:
            self._unplace(key, old_due_us)
        self._dues[key] = due_us
        return True

    def _place(self, entries: Iterable[WheelEntry]) -> None:
        # The hot loop of adding and cascading alike, hence the locals, and calls only where a slot is new.
        wheel_tick, tick_us, levels = self._tick, self._tick_us, self._levels
        for key, due_us in entries:
            tick = due_us // tick_us
            ahead = tick - wheel_tick
            if ahead <= 0:
                self._place_near(key, due_us)
                continue
            depth = 0 if ahead < SLOTS else (ahead.bit_length() - 2) // STEP  # as `_level`, without a call
            level = levels[depth] if depth < len(levels) else self._level(ahead)
            number = tick >> level.shift
            slot = level.slots.get(number)
            if slot is None:
                slot = level.new_slot(number)
            slot[key] = due_us

    def _level(self, ahead: int) -> "_Level":
        """The lowest level that reaches so many ticks ahead."""
        depth = 0 if ahead < SLOTS else (ahead.bit_length() - 2) // STEP
        while depth >= len(self._levels):
            self._levels.append(_Level(len(self._levels) * STEP, self._tick))
        return self._levels[depth]

    def _place_near(self, key: int, due_us: int) -> None:
        self._near[key] = due_us
        heappush(self._heap, (due_us, key))
        if len(self._heap) > 2 * len(self._near) + SLOTS:  # most of it has been cancelled or moved
            self._heap = [(due_us, key) for key, due_us in self._near.items()]
            heapify(self._heap)

    def _unplace(self, key: int, due_us: int) -> None:
        tick = due_us // self._tick_us
        if tick <= self._tick:
            if self._near.pop(key, None) is None:
                self._unplace_over(key)
            return
        for level in self._levels:  # it may wait above the lowest level that reaches it by now
            slot = level.slots.get(tick >> level.shift)
            if slot and slot.pop(key, None) is not None:
                if not slot:
                    slot.clear()  # an emptied dict keeps the table of its fullest time otherwise
                return

    def _unplace_over(self, key: int) -> None:
        for slot in self._over:
            if slot.pop(key, None) is not None:
                break
        while self._over and not self._over[0]:
            self._over.popleft()

    def _pop_near(self, now_us: int, most: int | None) -> list[Due]:
        heap, near = self._heap, self._near
        due: list[Due] = []
        while heap and heap[0][0] <= now_us and (most is None or len(due) < most):
            due_us, key = entry = heappop(heap)
            if near.get(key) == due_us:
                del near[key]
                due.append(entry)
        return due

    def _pop_over(self, most: int | None) -> list[Due]:
        due: list[Due] = []
        while self._over and (most is None or len(due) < most):
            slot = self._over[0]
            if most is None or len(due) + len(slot) <= most:
                due += [(due_us, key) for key, due_us in slot.items()]
                self._over.popleft()
            else:
                for _ in range(most - len(due)):
                    key, due_us = slot.popitem()
                    due.append((due_us, key))
        return due

    def _recall(self) -> None:
        """The clock was set back: what is over may not be due any more, and has to stand in exact order."""
        over, self._over = self._over, deque()
        for slot in over:
            for key, due_us in slot.items():
                self._place_near(key, due_us)

    def _turn(self, tick: int, now_us: int) -> None:
        """Go on to a later tick. What was near is over by then, and so is what waited in the ticks between."""
        if self._near:
            self._add_over(self._near, self._heap[0][0], now_us)
            self._near = {}
            self._heap.clear()
        later: list[WheelEntry] = []
        whole: list[tuple[int, Slot]] = []
        for level in self._levels:
            for number, slot in level.take_until(tick):
                first_us = (number << level.shift) * self._tick_us
                if (number + 1 << level.shift) <= tick or max(slot.values(), default=0) <= now_us:
                    self._add_over(slot, first_us, now_us)
                elif (only := self._only_tick(slot)) is not None and only > tick:
                    whole.append((only, slot))
                else:
                    later += [entry for entry in slot.items() if entry[1] > now_us]
                    due = {key: due_us for key, due_us in slot.items() if due_us <= now_us}
                    self._add_over(due, first_us, now_us)
        self._tick = tick
        # Once every level has turned: a ring has room for one round only.
        for only, slot in whole:
            self._place_whole(only, slot)
        self._place(later)
        self._cascade_ahead()

    def _only_tick(self, slot: Slot) -> int | None:
        """The tick in which all of a slot is due, if it is one. Very many are often due at one and the same instant."""
        first = min(slot.values()) // self._tick_us
        return first if first == max(slot.values()) // self._tick_us else None

    def _place_whole(self, tick: int, slot: Slot) -> None:
        """Let a slot cascade as it is, whatever is in it: one by one a million would take a second."""
        level = self._level(tick - self._tick)
        number = tick >> level.shift
        there = level.slots.get(number)
        if there is None:
            level.new_slot(number)
        elif len(there) > len(slot):
            there.update(slot)
            return
        else:
            slot.update(there)
        level.slots[number] = slot

    def _add_over(self, slot: Slot, first_us: int, now_us: int) -> None:
        if slot:
            self._over_us = (min(first_us, self._over_us[0]) if self._over else first_us, now_us)
            self._over.append(slot)

    def _cascade_ahead(self) -> None:
        """Empty the next wide slots a batch at a time, so that entering a full one does not stall the wheel."""
        for level in self._levels[1:]:
            slot = level.slots.get(level.at + 1)
            if slot:
                self._place([slot.popitem() for _ in range(min(BATCH, len(slot)))])


class _Level:
    """A ring of slots of 2**shift ticks each: those with the numbers `at + 1` to `at + SLOTS`.

    Slots exist once used. Bit n of `occupied` tells of the slot whose number is n modulo SLOTS, so that the
    next one in use is found without a look at the empty ones before it.
    """

    __slots__ = ("at", "occupied", "shift", "slots")

    def __init__(self, shift: int, tick: int) -> None:
        self.shift = shift
        self.at = tick >> shift
        self.occupied = 0
        self.slots: dict[int, Slot] = {}

    def new_slot(self, number: int) -> Slot:
        self.occupied |= 1 << number % SLOTS
        slot = self.slots[number] = {}
        return slot

    def take_until(self, tick: int) -> list[tuple[int, Slot]]:
        """Turn to the tick, and hand over each slot that begins at it or before, with its number."""
        number = tick >> self.shift
        taken = []
        while (first := self._first()) is not None and first <= number:
            taken.append((first, self._remove(first)))
        self.at = number
        return taken

    def first_start(self) -> int | None:
        """The first tick of the earliest slot that holds something."""
        while (first := self._first()) is not None and not self.slots[first]:
            self._remove(first)  # emptied by cancels or ahead of time
        return None if first is None else first << self.shift

    def _first(self) -> int | None:
        if not self.occupied:
            return None
        start = self.at + 1
        passed = start % SLOTS
        bits = self.occupied >> passed | self.occupied << SLOTS - passed
        return start + (bits & -bits).bit_length() - 1  # the lowest bit that is set

    def _remove(self, number: int) -> Slot:
        self.occupied ^= 1 << number % SLOTS
        return self.slots.pop(number)
