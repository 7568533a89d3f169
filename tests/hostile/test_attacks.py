"""Attacks of one tenant, or of nobody, and another tenant that must not feel them.

Those that are alike share a server. Each test runs its attacks in turn and tells of all of them.
"""

from pathlib import Path

import pytest

from hostile.attacks import ATTACKS
from hostile.evaluation import MEMORY_MB
from hostile.harness import HEADER, row_of, start_harness

pytestmark = pytest.mark.slow

GROUPS = {
    "schedules": ("yearly_gaps", "rare_recurrences", "gap_crons", "abandoned_previews"),
    "bodies": ("worthless_lines", "worthless_arrays", "slow_bodies", "amplified_faults", "hollow_payloads"),
    "connections": (
        *("header_flood", "long_url", "drip_after_refusal", "idle_connections", "slow_heads", "pipelining"),
        *("metrics_flood", "unknown_keys"),
    ),
    "holding": (
        "hanging_targets",
        "hanging_at_the_victims_host",
        "long_polls",
        "label_searches",
        "slow_lists",
        "large_answers",
    ),
}


async def _survive(
    names: tuple[str, ...], url: str, folder: Path, *, is_heavy: bool = False, schedulers: int = 0
) -> None:
    async with start_harness(url, folder, schedulers=schedulers) as harness:
        for name in names:
            if not harness.is_lost:
                await harness.attack(name, is_heavy=is_heavy)
        rows = [row_of(harness.baseline, result) for result in harness.results]
        assert all(result.ok for result in harness.results), "\n".join([HEADER, *rows])
        assert harness.server.memory_mb() - harness.baseline.peak_mb < MEMORY_MB, "it adds up"
        assert "Traceback" not in harness.server.log


@pytest.mark.parametrize("group", GROUPS)
async def test_the_victim_feels_nothing(group: str, database_url: str, tmp_path: Path) -> None:
    await _survive(GROUPS[group], database_url, tmp_path)


@pytest.mark.campaign
@pytest.mark.parametrize("name", [name for names in GROUPS.values() for name in names])
async def test_the_victim_feels_nothing_of_a_heavier_attack(name: str, database_url: str, tmp_path: Path) -> None:
    assert name in ATTACKS
    await _survive((name,), database_url, tmp_path, is_heavy=True)


@pytest.mark.campaign
@pytest.mark.parametrize("name", GROUPS["schedules"])
async def test_a_cluster_does_not_pass_on_what_hangs(name: str, database_url: str, tmp_path: Path) -> None:
    """Two more schedulers that would take over the partitions of one that stands still."""
    await _survive((name,), database_url, tmp_path, is_heavy=True, schedulers=2)
