"""The diagrams of the concepts, as files in `docs/images`."""

from collections.abc import Iterable

from generators.drawing import Drawing
from state_model import ATTEMPT_TRANSITIONS, RUN_TRANSITIONS

_WIDTH = 760


def ticks() -> str:
    drawing = Drawing("Each tick of a job ends in a run or in a gap", _WIDTH, 220)
    drawing.text(20, 30, "0,10,20,30,40 9 * * *", "head", "start")
    drawing.arrow(40, 75, 735, 75)
    ends = (
        ("09:00", "run\nsuccess, attempt 1", "good"),
        ("09:10", "run\nsuccess, attempt 2", "good"),
        ("09:20", "gap: overlap\n09:10 still ran", "warn"),
        ("09:30", "gap: paused\nby a user", "warn"),
        ("09:40", "run\nlate, by 40 s", "good"),
    )
    for number, (at, text, kind) in enumerate(ends):
        x = 90 + 142 * number
        drawing.line(x, 67, x, 83, "strong")
        drawing.text(x, 57, at)
        drawing.arrow(x, 88, x, 118)
        drawing.box(x - 65, 122, 130, 48, text, kind)
    drawing.text(380, 200, "5 ticks = 3 runs + 2 ticks in gaps. Nothing else can become of a tick.", "note")
    return drawing.svg()


def lanes() -> str:
    drawing = Drawing("A queue consists of lanes; a lease is a range of one lane", _WIDTH, 260)
    drawing.text(20, 30, "queue billing", "head", "start")
    lease = {0: (2, 3), 1: (0, 1)}
    for row, name in enumerate(("partition 0, high", "partition 0, normal", "partition 1, high")):
        y = 55 + 62 * row
        drawing.text(20, y + 25, name, "note", "start")
        first, last = lease.get(row, (None, None))
        for column in range(6):
            is_done = row == 0 and column < 2
            is_leased = first is not None and first <= column <= last
            kind = "good" if is_leased else "dashed" if is_done else "box"
            drawing.box(150 + 62 * column, y, 54, 38, f"{101 + column + 100 * row}", kind)
        drawing.arrow(524, y + 19, 552, y + 19, kind="dashed")
    drawing.text(20, 245, "Finished attempts are dashed; new ones are appended on the right.", "note", "start")
    drawing.box(600, 55, 140, 46, "worker A\nlease 103–104", "good")
    drawing.box(600, 117, 140, 46, "worker B\nlease 201–202", "good")
    drawing.box(600, 179, 140, 46, "next lease\nbegins at 301", "box")
    return drawing.svg()


def leases() -> str:
    drawing = Drawing("A worker is killed: its lease expires, and another worker retries", _WIDTH, 270)
    drawing.arrow(120, 235, 740, 235)
    for seconds in range(0, 70, 10):
        x = 130 + 9 * seconds
        drawing.line(x, 231, x, 239)
        drawing.text(x, 256, f"{seconds} s", "note")
    drawing.text(20, 65, "worker A", anchor="start")
    drawing.box(130, 42, 135, 40, "attempt 1\ntoken 41", "good")
    drawing.text(272, 67, "killed at 15 s", "note", "start")
    drawing.text(20, 120, "lease of A", anchor="start")
    drawing.box(130, 100, 360, 30, "", "box")
    for seconds in (0, 10):
        drawing.arrow(130 + 9 * seconds, 145, 130 + 9 * seconds, 132)
    drawing.text(135, 160, "leased", "note", "start")
    drawing.text(222, 160, "heartbeat: until 40 s", "note", "start")
    drawing.arrow(490, 160, 490, 132)
    drawing.text(497, 160, "expired: the reaper records lost", "note", "start")
    drawing.text(20, 200, "worker B", anchor="start")
    drawing.box(580, 177, 140, 40, "attempt 2\ntoken 42", "good")
    drawing.arrow(490, 197, 576, 197, kind="dashed")
    drawing.text(483, 201, "retry after its backoff", "note", "end")
    return drawing.svg()


def fencing() -> str:
    drawing = Drawing("A late writer has a smaller fencing token and is refused", _WIDTH, 250)
    for x, name in ((110, "worker A"), (380, "your database"), (650, "worker B")):
        drawing.box(x - 70, 18, 140, 32, name)
        drawing.line(x, 50, x, 235, "dashed")
    drawing.text(120, 80, "leases attempt 1, token 41", "note", "start")
    drawing.box(98, 90, 24, 76, "", "warn")
    drawing.text(132, 122, "suspended; its", "note", "start")
    drawing.text(132, 138, "lease expires", "note", "start")
    drawing.text(640, 108, "leases attempt 2, token 42", "note", "end")
    drawing.arrow(648, 140, 384, 140, kind="strong")
    drawing.text(520, 132, "write with token 42", "note")
    drawing.box(392, 150, 150, 28, "largest token: 42", "good")
    drawing.arrow(112, 205, 376, 205)
    drawing.text(240, 197, "write with token 41", "note")
    drawing.box(392, 191, 190, 28, "41 < 42: refused", "bad")
    return drawing.svg()


def misfire() -> str:
    drawing = Drawing("Which ticks of a job run after an outage", _WIDTH, 330)
    drawing.text(20, 30, "0 * * * *, schedulers away from 09:30 to 13:10, grace 30 min", "head", "start")
    drawing.box(220, 60, 367, 26, "no scheduler", "bad")
    drawing.arrow(120, 105, 740, 105)
    hours = [f"{hour:02}:00" for hour in range(9, 15)]
    columns = [170 + 100 * number for number in range(6)]
    for x, at in zip(columns, hours, strict=True):
        drawing.line(x, 97, x, 113, "strong")
        drawing.text(x, 130, at, "note")
    rows = (
        ("SKIP", ("tick", "", "", "", "late", "tick"), 3),
        ("RUN_ONCE", ("tick", "", "", "catch_up", "late", "tick"), 2),
        ("RUN_ALL", ("tick", "catch_up", "catch_up", "catch_up", "late", "tick"), 0),
    )
    for number, (policy, runs, missed) in enumerate(rows):
        y = 148 + 50 * number
        drawing.text(20, y + 22, policy, anchor="start")
        for x, run in zip(columns, runs, strict=True):
            if run:
                drawing.box(x - 40, y, 80, 32, run, "good")
        if missed:
            drawing.box(columns[1] - 40, y, 100 * (missed - 1) + 80, 32, f"gap: {missed} missed", "warn")
    drawing.text(20, 316, "13:00 is 10 minutes late, within the grace: it runs under every policy.", "note", "start")
    return drawing.svg()


def daylight_saving() -> str:
    drawing = Drawing("A time that does not exist, and one that comes twice", _WIDTH, 330)
    drawing.text(20, 30, "30 2 * * *, New York, 8 March 2026: 02:00 becomes 03:00", "head", "start")
    _clock(drawing, 62, ("01:00", "01:30", "03:00", "03:30", "04:00"))
    for number, (policy, column) in enumerate((("catch_up", 2), ("shift", 3), ("skip", None))):
        x = 130 + 207 * number
        text = "no run, a gap" if column is None else f"runs at {('03:00', '03:30')[column - 2]}"
        drawing.box(x, 108, 195, 38, f"{policy}: {text}", "warn" if column is None else "good")
    drawing.text(20, 132, "dst_gap", "note", "start")
    drawing.text(20, 195, "30 1 * * *, New York, 1 November 2026: 02:00 becomes 01:00", "head", "start")
    _clock(drawing, 227, ("00:30", "01:00", "01:30", "01:00", "01:30", "02:00"))
    for number, text in enumerate(("first: the first 01:30", "second: the second", "both: two runs")):
        drawing.box(130 + 207 * number, 273, 195, 38, text, "good")
    drawing.text(20, 297, "dst_overlap", "note", "start")
    return drawing.svg()


def _clock(drawing: Drawing, y: float, times: Iterable[str]) -> None:
    drawing.arrow(130, y, 740, y)
    for number, at in enumerate(times):
        x = 170 + 105 * number
        drawing.line(x, y - 7, x, y + 7, "strong")
        drawing.text(x, y + 24, at, "note")


def fairness() -> str:
    drawing = Drawing("Due timers leave by tenant, in turn", _WIDTH, 240)
    drawing.text(20, 30, "due timers, by tenant", "head", "start")
    drawing.text(460, 30, "the order in which they fire", "head", "start")
    due = (("A", 9, "box"), ("B", 2, "good"), ("C", 1, "warn"))
    for row, (tenant, count, kind) in enumerate(due):
        y = 50 + 48 * row
        drawing.text(20, y + 22, f"tenant {tenant}", "note", "start")
        for column in range(count):
            drawing.box(90 + 34 * column, y, 28, 32, tenant, kind)
    drawing.arrow(405, 114, 448, 114)
    kinds = {tenant: kind for tenant, _, kind in due}
    for number, tenant in enumerate("ABCABAAAAAAA"):
        drawing.box(460 + 46 * (number % 6), 72 + 44 * (number // 6), 38, 36, tenant, kinds[tenant])
    drawing.text(
        20,
        222,
        "B and C wait for one turn of A, not for all that A has due. Here a turn is one timer; in fact it is eight.",
        "note",
        "start",
    )
    return drawing.svg()


Places = dict[str, tuple[int, int]]

_RUN_PLACES: Places = {
    "pending": (175, 110),
    "running": (405, 110),
    "retrying": (290, 215),
    "success": (640, 50),
    "dead": (640, 110),
    "cancelled": (640, 215),
}
_ATTEMPT_PLACES: Places = {
    "ready": (175, 150),
    "leased": (365, 150),
    "success": (640, 40),
    "failed": (640, 95),
    "timed_out": (640, 150),
    "lost": (640, 205),
    "deferred": (640, 260),
    "cancelled": (365, 290),
}


def run_states() -> str:
    drawing = Drawing("The states of a run", _WIDTH, 290)
    drawing.arrow(165, 130, 165, 265, 640, 265, 640, 235)
    drawing.text(400, 261, "cancel", "label")
    _states(drawing, _RUN_PLACES, RUN_TRANSITIONS.items(), drawn=("pending", "cancelled"))
    return drawing.svg()


def attempt_states() -> str:
    drawing = Drawing("The states of an attempt", _WIDTH, 330)
    drawing.arrow(175, 170, 175, 290, 313, 290)
    drawing.text(240, 286, "cancel", "label")
    _states(drawing, _ATTEMPT_PLACES, ATTEMPT_TRANSITIONS.items(), drawn=("ready", "cancelled"))
    return drawing.svg()


def _states(
    drawing: Drawing,
    places: Places,
    transitions: Iterable[tuple[tuple[str | None, str], str]],
    drawn: tuple[str, str],
) -> None:
    """Boxes at their places, and an arrow for each pair of states with its events. One arrow is `drawn` already."""
    arrows: dict[tuple[str | None, str], list[str]] = {}
    for (source, event), target in transitions:
        arrows.setdefault((source and str(source), str(target)), []).append(str(event))
    finals = {target for _, target in arrows} - {source for source, _ in arrows}
    assert arrows[drawn] == ["cancel"]
    for (source, target), events in arrows.items():
        if source is None:
            _beginning(drawing, places[target], events)
        elif source != target and (source, target) != drawn:
            is_double = (target, source) in arrows
            _transition(drawing, places[source], places[target], ", ".join(events), is_double=is_double)
    for name, (x, y) in places.items():
        kind = {"success": "good", "dead": "bad"}.get(name, "warn" if name in finals else "box")
        drawing.box(x - 50, y - 18, 100, 36, name, kind)


def _beginning(drawing: Drawing, place: tuple[int, int], events: list[str]) -> None:
    x, y = place
    drawing.arrow(20, y, x - 52, y)
    for number, event in enumerate(events):
        drawing.text(22, y - 8 - 15 * (len(events) - 1 - number), event, "label", "start")


def _transition(drawing: Drawing, begin: tuple[int, int], end: tuple[int, int], text: str, *, is_double: bool) -> None:
    (from_x, from_y), (to_x, to_y) = begin, end
    if from_y == to_y and is_double:  # one arrow there, one back
        side = 1 if from_x < to_x else -1
        y = from_y - 9 * side
        drawing.arrow(from_x + 52 * side, y, to_x - 52 * side, y)
        drawing.text((from_x + to_x) / 2, y - 6 if side > 0 else y + 17, text, "label")
    elif abs(from_x - to_x) < 150:
        drawing.arrow(from_x, from_y + (20 if to_y > from_y else -20), to_x, to_y - (20 if to_y > from_y else -20))
        drawing.text((from_x + to_x) / 2, (from_y + to_y) / 2 + 4, text, "label")
    else:
        drawing.arrow(from_x + 52, from_y, to_x - 53, to_y)
        drawing.text(from_x + 0.62 * (to_x - from_x), from_y + 0.62 * (to_y - from_y) + 4, text, "label")


DIAGRAMS = {
    "images/attempt-states.svg": attempt_states,
    "images/daylight-saving.svg": daylight_saving,
    "images/fairness.svg": fairness,
    "images/fencing.svg": fencing,
    "images/lanes.svg": lanes,
    "images/leases.svg": leases,
    "images/misfire.svg": misfire,
    "images/run-states.svg": run_states,
    "images/ticks.svg": ticks,
}
