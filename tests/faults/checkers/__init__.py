"""Judges a history after a fault test: pure functions from records to verdicts. Reading the records is not theirs."""

from faults.checkers.all_checks import check_all
from faults.checkers.attempts import one_run_per_tick
from faults.checkers.deliveries import lost_before_started_again, receivers_log
from faults.checkers.endings import every_tick_ends
from faults.checkers.fence import epochs_only_grow
from faults.checkers.history import (
    AttemptRecord,
    Delivery,
    FencedWrite,
    GapRecord,
    JobHistory,
    OutcomeRecord,
    PendingTimer,
    RunRecord,
)
from faults.checkers.lags import Window, lag_recovers, neighbours_unaffected
from faults.checkers.metrics import metrics_equal_rows
from faults.checkers.resources import resources_bounded
from faults.checkers.targets import every_target_hit
from faults.checkers.verdict import Verdict

__all__ = [
    "AttemptRecord",
    "Delivery",
    "FencedWrite",
    "GapRecord",
    "JobHistory",
    "OutcomeRecord",
    "PendingTimer",
    "RunRecord",
    "Verdict",
    "Window",
    "check_all",
    "epochs_only_grow",
    "every_target_hit",
    "every_tick_ends",
    "lag_recovers",
    "lost_before_started_again",
    "metrics_equal_rows",
    "neighbours_unaffected",
    "one_run_per_tick",
    "receivers_log",
    "resources_bounded",
]
