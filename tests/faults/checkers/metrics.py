"""C9: metrics equal rows. What processes counted is what the tables have."""

from collections.abc import Mapping

from faults.checkers.verdict import Verdict


def metrics_equal_rows(counted: Mapping[str, float], rows: Mapping[str, int], *, may_miss: bool = False) -> Verdict:
    """Each figure that was counted equals the number of rows, and the other way round.

    `may_miss`: a process was killed, or an answer was lost: no figure is above the rows.
    """
    faults = tuple(
        f"{name}: {counted.get(name, 0):g} were counted, the tables have {rows.get(name, 0)}"
        for name in sorted({*counted, *rows})
        if counted.get(name, 0) > rows.get(name, 0) or (not may_miss and counted.get(name, 0) != rows.get(name, 0))
    )
    return Verdict("C9 metrics", faults, {"figures": len({*counted, *rows}), "rows": sum(rows.values())})
