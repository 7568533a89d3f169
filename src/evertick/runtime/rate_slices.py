"""Slices of rate buckets: what this process has drawn ahead of buckets that it shares with others.

A request that a slice covers costs nothing. Else one draw of the key is under way at a time, for all that wait: if it
fails, it fails for all of them. It goes on when those that wait are cancelled, so that what it gets is in the slice.
Draws of different keys share statements. What a killed process held is lost: at most a slice.
"""

import asyncio
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from evertick.domain import rate_bucket
from evertick.domain.rate_bucket import Drawn, Rate, Slice
from evertick.runtime.concurrency import Batcher
from evertick.store.engine.rate_buckets import Ask, RateBuckets

TRIES = 5
BUSY_SECONDS = 0.005
"""A draw holds its bucket for less than this."""
BUSY_WAIT_US = 100_000
"""For a client whose tenant's bucket somebody holds for longer."""
MAX_KEYS = 10_000


@dataclass(slots=True)
class _Share:
    rate: Rate | None = None
    held: Slice = field(default_factory=Slice)
    waiting: int = 0
    draw: asyncio.Task[Drawn] | None = None


class RateSlices:
    """Takes tokens of rate buckets, by slices."""

    def __init__(self, buckets: RateBuckets, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._buckets = buckets
        self._monotonic = monotonic
        self._shares: dict[str, _Share] = {}
        self._draws = Batcher[None, Ask, Drawn | None](self._draw_each)

    def __len__(self) -> int:
        """How many keys have a slice."""
        return len(self._shares)

    async def take(self, key: str, rate: Rate, *, least: int, most: int) -> Drawn:
        """Take up to `most` tokens, or none if fewer than `least` are there. `least` is at most the burst."""
        share = self._share(key)
        if share.rate != rate:  # it was edited: a refusal under the old one says nothing
            share.rate, share.held = rate, replace(share.held, refused=0)
        share.waiting += most
        try:
            # While a draw is under way its slice is spoken for.
            taken = None if share.draw else self._from_slice(share, least, most)
            while taken is None:
                taken = await self._after_draw(key, rate, share, least, most)
        finally:
            share.waiting -= most
        if taken.granted < most:
            share.held = rate_bucket.turn_away(share.held, most - taken.granted)
        return taken

    def give_back(self, key: str, amount: int) -> None:
        """Hold tokens again that were taken for something that was undone: the next tries need them."""
        share = self._shares.get(key)
        if share is not None and share.rate is not None:  # else nothing was taken
            share.held = rate_bucket.give_back(share.rate, share.held, amount, self._now_us())

    def refusal(self, key: str) -> Drawn | None:
        """A refusal of a single token, if one is known without asking."""
        share = self._shares.get(key)
        if share is None:
            return None
        now_us = self._now_us()
        held = rate_bucket.unexpired(share.held, now_us)
        wait_us = None if held.tokens else rate_bucket.refusal_us(held, 1, now_us)
        return None if wait_us is None else Drawn(0, wait_us)

    def _from_slice(self, share: _Share, least: int, most: int) -> Drawn | None:
        """What needs no draw: enough tokens, or a refusal that still holds. None: draw."""
        now_us = self._now_us()
        share.held = held = rate_bucket.unexpired(share.held, now_us)
        if held.tokens >= most:
            share.held = rate_bucket.spend(held, most)
            return Drawn(most)
        wait_us = rate_bucket.refusal_us(held, max(least, held.tokens + 1), now_us)
        if wait_us is None:
            return None
        if least <= held.tokens:
            share.held = rate_bucket.spend(held, held.tokens)
            return Drawn(held.tokens)
        return Drawn(0, wait_us)

    async def _after_draw(self, key: str, rate: Rate, share: _Share, least: int, most: int) -> Drawn | None:
        """What is there after the draw that is under way, or after one of our own. None: others were faster."""
        is_own = share.draw is None
        draw = share.draw or self._begin_draw(key, rate, share, least, most)
        drawn = await asyncio.shield(draw)
        if not is_own:
            return None if share.draw else self._from_slice(share, least, most)
        held = share.held
        if held.tokens >= least:
            share.held = rate_bucket.spend(held, taken := min(held.tokens, most))
            return Drawn(taken)
        return None if drawn.granted else drawn

    def _begin_draw(self, key: str, rate: Rate, share: _Share, least: int, most: int) -> "asyncio.Task[Drawn]":
        share.draw = draw = asyncio.create_task(self._draw(key, rate, share, least, most))
        # Retrieved, should all who waited be gone.
        draw.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
        return draw

    async def _draw(self, key: str, rate: Rate, share: _Share, least: int, most: int) -> Drawn:
        """Draw for one that needs `least` and wants `most`, and for those that wait with it."""
        held = share.held
        needed = max(1, least - held.tokens)
        # Those that wait get theirs from the same draw; one of them is this one.
        others = max(0, min(share.waiting - most, rate.burst // rate_bucket.PARTS))
        wanted = most - held.tokens + others + rate_bucket.ahead(rate, held, self._now_us())
        try:
            drawn = await self._ask(Ask(key, rate, needed, wanted))
        finally:
            share.draw = None  # here, not in a callback: a request in between would wait in vain for what is done
        share.held = rate_bucket.received(rate, share.held, drawn, needed, self._now_us())
        return drawn

    async def _ask(self, ask: Ask) -> Drawn:
        for _ in range(TRIES):
            drawn = await self._draws.ask(None, ask)
            if drawn is not None:
                return drawn
            await asyncio.sleep(random.uniform(0, BUSY_SECONDS))  # noqa: S311 - no secret
        return Drawn(0, BUSY_WAIT_US)

    async def _draw_each(self, _: None, asks: list[Ask]) -> list[Drawn | Exception | None]:
        return [*await self._buckets.draw(asks)]

    def _share(self, key: str) -> _Share:
        share = self._shares.get(key)
        if share is None:
            if len(self._shares) >= MAX_KEYS:
                self._forget_idle()
            share = self._shares[key] = _Share()
        return share

    def _forget_idle(self) -> None:
        now_us = self._now_us()
        self._shares = {
            key: share
            for key, share in self._shares.items()
            if share.waiting or share.draw or rate_bucket.unexpired(share.held, now_us).tokens
        }

    def _now_us(self) -> int:
        return int(self._monotonic() * 1_000_000)
