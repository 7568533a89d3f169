"""C4: what the receiver saw agrees with what is on record. Duplicates are allowed, and counted."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from operator import attrgetter

from evertick.domain.ids import RunKey
from evertick.domain.states import Outcome, RunStatus
from faults.checkers.history import AttemptRecord, Delivery, JobHistory, RunRecord
from faults.checkers.verdict import Verdict, run_text

_BY_ATTEMPT = attrgetter("attempt", "seq")


def receivers_log(jobs: Iterable[JobHistory], deliveries: Iterable[Delivery], *, unique_keys: bool = True) -> Verdict:
    """Each success was delivered, under one key per run and tokens that grow with the attempts.

    `unique_keys` is off for templates that give several runs one key. The order of arrival is not judged: a zombie's
    request may come last, which is what its smaller token is for.
    """
    log: dict[RunKey, list[Delivery]] = {}
    for delivery in deliveries:
        log.setdefault(delivery.run_key, []).append(delivery)
    faults: list[str] = []
    recorded: dict[RunKey, tuple[AttemptRecord, ...]] = {}
    for job in jobs:
        for run in job.runs:
            key = run.key
            faults += (f"{run_text(key)}: {fault}" for fault in _undelivered(run, log.get(key, ())))
            recorded[key] = recorded.get(key, ()) + run.attempts
    for key, seen in log.items():
        faults += (f"{run_text(key)}: {fault}" for fault in _log_faults(seen, recorded.get(key, ())))
    if unique_keys:
        faults += _shared_keys(log)
    total = sum(map(len, log.values()))
    figures = {"deliveries": total, "runs": len(log), "duplicates": total - len(log)}
    return Verdict("C4 receiver's log", tuple(faults), figures)


def lost_before_started_again(jobs: Iterable[JobHistory], deliveries: Iterable[Delivery]) -> Verdict:
    """A run was started again only after its attempt before was lost: its lease ran out, or its process was killed.

    An attempt that was started twice is a fault in any case: it was put back although it was started, or two workers
    had it at once.
    """
    results = {
        (run.key, attempt.seq): None if attempt.outcome is None else attempt.outcome.result
        for job in jobs
        for run in job.runs
        for attempt in run.attempts
    }
    starts: dict[RunKey, list[Delivery]] = {}
    for delivery in deliveries:
        starts.setdefault(delivery.run_key, []).append(delivery)
    faults = []
    for key, seen in starts.items():
        for before, after in pairwise(sorted(seen, key=_BY_ATTEMPT)):
            result = results.get((key, before.seq))
            if before.seq == after.seq:
                faults.append(f"{run_text(key)}: attempt {before.attempt} was started twice")
            elif result is not Outcome.LOST:
                faults.append(f"{run_text(key)}: started again after attempt {before.attempt}, which is {result}")
    again = sum(len(seen) - 1 for seen in starts.values())
    return Verdict("lost before started again", tuple(faults), {"started_again": again})


def _undelivered(run: RunRecord, seen: Iterable[Delivery]) -> Iterator[str]:
    """A success counts only if the attempt that claims it came through, not merely one before it."""
    latest = run.latest
    if latest is None or run.status is not RunStatus.SUCCESS:
        return
    if latest.seq not in {delivery.seq for delivery in seen}:
        yield f"attempt {latest.attempt} is a success that the receiver never saw"


def _log_faults(seen: Sequence[Delivery], attempts: Iterable[AttemptRecord]) -> Iterator[str]:
    if keys := {delivery.idempotency_key for delivery in seen} - {seen[0].idempotency_key}:
        yield f"idempotency keys {seen[0].idempotency_key!r} and {', '.join(map(repr, sorted(keys)))}"
    on_record = {(attempt.attempt, attempt.seq) for attempt in attempts}
    for delivery in seen:
        if (delivery.attempt, delivery.seq) not in on_record:
            yield f"delivery of attempt {delivery.attempt}, token {delivery.seq}, which is not on record"
    for before, after in pairwise(sorted(seen, key=_BY_ATTEMPT)):
        if before.attempt < after.attempt and before.seq >= after.seq:
            yield f"token {after.seq} of attempt {after.attempt} is not above {before.seq} of attempt {before.attempt}"


def _shared_keys(log: dict[RunKey, list[Delivery]]) -> Iterator[str]:
    owners: dict[str, RunKey] = {}
    for run_key, seen in log.items():
        for key in {delivery.idempotency_key for delivery in seen}:
            owner = owners.setdefault(key, run_key)
            if owner != run_key:
                yield f"{run_text(run_key)}: shares the idempotency key {key!r} with {run_text(owner)}"
