"""Says at the end of a run of tests what was not tested because a server is not installed. pytest itself would show the
number of skipped tests alone.
"""

from collections import Counter
from typing import Any

NOT_TESTED = "NOT TESTED WITH"
_SKIPPED = "Skipped: "


def pytest_terminal_summary(terminalreporter: Any) -> None:
    places = [report.longrepr for report in terminalreporter.stats.get("skipped", ())]
    reasons = Counter(place[2].removeprefix(_SKIPPED) for place in places if isinstance(place, tuple))
    if missing := {reason: count for reason, count in sorted(reasons.items()) if reason.startswith(NOT_TESTED)}:
        terminalreporter.section("servers that are missing", yellow=True, bold=True)
        for reason, count in missing.items():
            terminalreporter.line(f"{reason} ({count} skipped)", yellow=True)
