"""Writes the pages that are generated from code. Run it after a change there: `python docs/generate.py`.

With `--check` it writes nothing, and fails if a page is stale.
"""  # noqa: INP001  (a script beside the pages, not a package)

import sys
from collections.abc import Iterable
from pathlib import Path

from evertick.domain.states import GapReason, OpenAttempt, Outcome, RunReason, RunStatus, StateWord, gap_status

DOCS = Path(__file__).parent
sys.path.insert(0, str(DOCS.parent / "tests"))

from state_model import ATTEMPT_TRANSITIONS, RUN_TRANSITIONS, Event  # noqa: E402 - from beside the tests

_INTRO = """\
# The states of runs and attempts

<!-- Generated from domain/states.py and tests/state_model.py: edit there, then run `python docs/generate.py`. -->

A **run** is one occurrence of a job. It has one or more **attempts**. Each attempt ends with exactly one outcome.
The worker's result, the reaper's `lost` and a user's `cancelled` may race: the first one that is recorded
counts, the others are ignored. There are no transitions besides those in the diagrams."""

_RUN_NOTES = """\
- A `pending` run waits for its first fire, for another run, after a deferral, or in a lane for a worker. A retry is
  `retrying` until it is due, and then `pending`.
- A cancel ends a run in any unfinished state immediately. A worker learns of it with its next check or heartbeat;
  an outcome that it records later is stale.
- A replay does not change the finished run, but removes its dead letter. It creates a new run with its own fire
  time, the reason `replay` and attempts numbered from 1. History is never rewritten, and no tick is counted twice."""

_ATTEMPT_NOTES = """\
- `failed`, `timed_out` and `lost` use up an attempt. The same statement sets a retry timer or writes a dead letter.
- `deferred` uses up no attempt: the same attempt number follows as a new row with a larger fencing token.
- `put_back` uses up no attempt and writes no row: the same row can be leased again, with the same token.
- A cancelled attempt that was never leased stays in its lane; leases skip it."""


def _mermaid(transitions: Iterable[tuple[tuple[str | None, str], str]]) -> str:
    """A `stateDiagram-v2` with one arrow per pair of states, labelled with the events that take it."""
    arrows: dict[tuple[str, str], list[str]] = {}
    for (source, event), target in transitions:
        arrows.setdefault((source or "[*]", target), []).append(event)
    lines = [f"    {source} --> {target}: {', '.join(events)}" for (source, target), events in arrows.items()]
    sources = {source for source, _ in arrows}
    finals = dict.fromkeys(target for _, target in arrows if target not in sources)
    return "\n".join(["stateDiagram-v2", *lines, *(f"    {final} --> [*]" for final in finals)])


def states_page() -> str:
    """The whole of `docs/states.md`."""
    parts = [
        _INTRO,
        "## Runs",
        _diagram(RUN_TRANSITIONS.items()),
        _table("status", RunStatus),
        _RUN_NOTES,
        "Why a run exists:",
        _table("reason", RunReason),
        "## Attempts",
        _diagram(ATTEMPT_TRANSITIONS.items()),
        _table("state", [*OpenAttempt, *Outcome]),
        _ATTEMPT_NOTES,
        "## Events",
        _table("event", Event, set_by="caused by"),
        "## Gaps",
        "The list of runs shows ticks that did not run as a gap:",
        _gaps(),
    ]
    return "\n\n".join(parts) + "\n"


def _diagram(transitions: Iterable[tuple[tuple[str | None, str], str]]) -> str:
    return f"```mermaid\n{_mermaid(transitions)}\n```"


def _table(head: str, words: Iterable[StateWord], set_by: str = "set by") -> str:
    rows = [f"| `{word}` | {word.set_by} | {word.meaning} |" for word in words]
    return "\n".join([f"| {head} | {set_by} | means |", "|---|---|---|", *rows])


def _gaps() -> str:
    rows = [f"| `{reason}` | `{gap_status(reason)}` | {reason.meaning} |" for reason in GapReason]
    return "\n".join(["| reason | status | means |", "|---|---|---|", *rows])


PAGES = {"states.md": states_page}


def main() -> None:
    stale = [name for name, page in PAGES.items() if _read(name) != page()]
    if "--check" in sys.argv:
        sys.exit(f"stale: {', '.join(stale)}: run `python docs/generate.py`" if stale else 0)
    for name in stale:
        (DOCS / name).write_text(PAGES[name](), encoding="utf-8", newline="\n")


def _read(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


if __name__ == "__main__":
    main()
