"""Batches that are cut into jobs while they arrive: as if they had been read at once, wherever their parts end."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from evertick.api.bodies import batch_splitting, batches
from evertick.api.bodies.batches import decode_batch, read_batch
from evertick.api.bodies.memory_limits import MEBIBYTE, BodyLimits
from evertick.api.bodies.request_body import JSON, NDJSON, IncomingBody
from evertick.api.problems import HttpProblem, Kind

_TEXTS = st.text(st.sampled_from('}],{["\\ é:0'), max_size=6)
_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 10**6) | st.floats(allow_nan=False, allow_infinity=False) | _TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_TEXTS, inner, max_size=4),
    max_leaves=12,
)
_JOBS = st.lists(_VALUES | st.dictionaries(_TEXTS, _VALUES, min_size=1, max_size=4), max_size=12)
_SEPARATORS = st.sampled_from([(",", ":"), (", ", ": "), (" ,\n\t", " : ")])
_BROKEN = st.sampled_from(["", "[", "]", "{", "}", ",", '"', "[]", "{}", "1 2", " ", "x", "\\"])


async def _read(media_type: str, text: bytes, size: int) -> list[object]:
    """The jobs that come of a text that arrives in parts of this size."""

    async def stream() -> AsyncIterator[bytes]:
        for start in range(0, len(text), size):
            yield text[start : start + size]

    with BodyLimits(128 * MEBIBYTE, 512 * MEBIBYTE).of(1) as reservation:
        body = IncomingBody({"content-type": media_type}, stream(), reservation)
        whole = await read_batch(body)
        batch = await decode_batch(whole, reservation, len(whole.numbers))
    assert len(batch.lines) == len(batch.numbers)
    return [batch.unreadable.get(place, line) for place, line in enumerate(batch.lines)]


@pytest.fixture(params=[16, 64])
def window(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows as short as the batches of a test."""
    monkeypatch.setattr(batch_splitting, "WINDOW", request.param)
    monkeypatch.setattr(batches, "MAX_VALUES", 10**6)


@pytest.mark.usefixtures("window")
@settings(max_examples=50)
@given(jobs=_JOBS, separators=_SEPARATORS, size=st.integers(1, 200), space=st.sampled_from(["", " ", "\n" * 99]))
def test_an_array_is_read_as_it_would_be_at_once(jobs: Any, separators: Any, size: int, space: str) -> None:
    text = space + json.dumps(jobs, separators=separators, ensure_ascii=False) + space
    assert asyncio.run(_read(JSON, text.encode(), size)) == jobs


@pytest.mark.usefixtures("window")
@settings(max_examples=50)
@given(jobs=_JOBS, broken=_BROKEN, at=st.floats(0, 1), size=st.integers(1, 200))
def test_an_array_that_is_broken_somewhere_is_refused_or_read_as_it_would_be_at_once(
    jobs: Any, broken: str, at: float, size: int
) -> None:
    text = json.dumps(jobs, ensure_ascii=False)
    place = int(at * len(text))
    text = text[:place] + broken + text[place + 1 :]
    try:
        expected = json.loads(text)
    except ValueError:
        expected = None
    if isinstance(expected, list):
        assert asyncio.run(_read(JSON, text.encode(), size)) == expected
        return
    with pytest.raises(HttpProblem) as refused:
        asyncio.run(_read(JSON, text.encode(), size))
    assert refused.value.kind in {Kind.MALFORMED, Kind.INVALID}


@given(jobs=_JOBS, size=st.integers(1, 200), feed=st.sampled_from(["\n", "\r\n", "\n \n"]))
def test_lines_are_read_one_by_one(jobs: Any, size: int, feed: str) -> None:
    text = feed.join(json.dumps(job, ensure_ascii=False) for job in jobs)
    assert asyncio.run(_read(NDJSON, text.encode(), size)) == jobs
