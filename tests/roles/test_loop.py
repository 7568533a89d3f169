"""Loops in trouble: what they say of it, how soon they try again, and that they stop."""

import asyncio
import logging

import asyncpg
import pytest

from engine import PATIENCE_SECONDS
from evertick.runtime import loop as looping
from evertick.runtime.loop import Loop, NotYet, Outage, Unavailable

FULL = asyncpg.DiskFullError("could not extend file: No space left on device")


@pytest.fixture(autouse=True)
def told(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, "evertick")
    return caplog


def test_an_outage_is_told_once_with_its_reason_and_its_end_once(
    told: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    outage = Outage("fire")
    for _ in range(100):
        outage.failed(FULL, 0.0)
    monkeypatch.setattr(looping, "QUIET_SECONDS", 0.0)
    for _ in range(3):
        outage.went_well(60.0)
    first, last = told.messages
    assert first.startswith("fire: the database is unavailable: the disk is full: could not extend file")
    assert last.startswith("fire: the database answers again after ")


def test_another_error_during_an_outage_is_told_too(told: pytest.LogCaptureFixture) -> None:
    outage = Outage("fire")
    for error in (FULL, TimeoutError(), TimeoutError()):
        outage.failed(error, 0.0)
    assert len(told.messages) == 2
    assert "no answer in time" in told.messages[1]


def test_a_mistake_is_told_with_its_traceback_once(
    told: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(looping, "REPORT_SECONDS", 0.0)
    outage = Outage("fire")
    for _ in range(3):
        outage.failed(ValueError("never"), 0.0)
    assert [record.exc_info is not None for record in told.records] == [True, False, False]
    assert told.messages[1].startswith("fire still fails: ValueError: never")


def test_what_must_not_wait_long_does_not_though_the_other_side_asks_for_it() -> None:
    busy = Unavailable("the server", "503", wait_seconds=60.0)
    heartbeat = Outage("heartbeat", longest_backoff=15.0, diagnose=lambda _: busy, longest_pause=lambda: 5.0)
    others = Outage("record", longest_backoff=15.0, diagnose=lambda _: busy)
    assert max(heartbeat.failed(FULL, 0.0) for _ in range(10)) == 5.0
    assert max(others.failed(FULL, 0.0) for _ in range(10)) == 75.0


def test_the_pauses_grow_through_single_steps_that_went_well() -> None:
    outage = Outage("fire")
    pauses = []
    for _ in range(8):
        pauses.append(outage.failed(FULL, 0.0))
        outage.went_well(0.05)
        outage.went_well(NotYet(60.0))
    assert pauses == sorted(pauses)
    assert pauses[-1] == looping.LONGEST_BACKOFF


async def test_a_step_that_never_ends_does_not_keep_its_loop_from_stopping() -> None:
    stuck = asyncio.Event()

    async def step() -> float:
        stuck.set()
        await asyncio.Event().wait()
        return 0

    loop = Loop("stuck", step)
    loop.start()
    await stuck.wait()
    async with asyncio.timeout(PATIENCE_SECONDS):
        await loop.stop(0.01)


async def test_a_step_under_way_is_let_end() -> None:
    begun, may_end = asyncio.Event(), asyncio.Event()
    ended = []

    async def step() -> float:
        begun.set()
        await may_end.wait()
        ended.append(True)
        return 60

    loop = Loop("slow", step)
    loop.start()
    await begun.wait()
    stopping = asyncio.create_task(loop.stop())
    may_end.set()
    await stopping
    assert ended == [True]
