"""The diagnosis of each fact that the doctor reads: pure functions."""

from collections.abc import Collection, Sequence
from datetime import date, datetime, timedelta
from enum import StrEnum
from typing import NamedTuple

from evertick import tzdb
from evertick.domain.cluster_identity import REMEDY, explain, unreadable
from evertick.domain.ids import PARTITIONS, Prefix, format_id, format_token
from evertick.domain.schedule.describe.english import counted
from evertick.domain.serving import rough_duration
from evertick.store.archive.days import ArchiveMarks, ArchiveSummary
from evertick.store.engine.clock import Marks
from evertick.store.engine.identity import Facts
from evertick.store.engine.workers import AliveRole, IdleQueue
from evertick.store.maintenance.diagnostics import (
    DeadTuples,
    OldestDueTimer,
    OldestSnapshot,
    ReadyQueue,
    StuckLeases,
    UnservedAttempts,
)
from evertick.store.tenants.events import Lag as EventLag
from evertick.version import __version__

HARMLESS_SKEW_SECONDS = 1.0
UNTRUSTED = timedelta(days=1)
"""So far the trusted time may lag behind the clock without a warning."""
BUSY, FULL = 0.8, 0.95
"""Fractions of the connections in use."""
LONG_SECONDS, TOO_LONG_SECONDS = 300.0, 3600.0
"""Of a transaction."""
MANY_TRANSACTIONS = 1_000_000
LATE, TOO_LATE = timedelta(seconds=10), timedelta(minutes=5)
"""Of the oldest due timer; of the oldest ready attempt the second is a warning."""
MANY_DEAD_TUPLES = 100_000
MANY_DAYS = 3
"""That wait to be archived: one comes each day."""
MAX_LETTERS = 10_000
"""Dead letters are counted up to this."""
_ARCHIVE_STARTS = "start a process with the role janitor and these settings"
_DIRECT = "set EVERTICK_DATABASE_DIRECT_URL"


class Level(StrEnum):
    """The severity of a diagnosis."""

    OK = "ok"
    WARNING = "warning"  # it works, but needs attention
    PROBLEM = "problem"  # something does not work, or soon will not


class Diagnosis(NamedTuple):
    """The state of one part, and what to do about it; None where all is well."""

    name: str
    level: Level
    what: str
    todo: str | None = None


def on_server(version: str, *, is_pooled: bool = False) -> Diagnosis:
    return Diagnosis("server", Level.OK, f"PostgreSQL {version}{', through a pooler' if is_pooled else ''}")


def on_wakeups(arrive: bool | None) -> Diagnosis:  # noqa: FBT001 - the one thing that is asked
    """None: there is a pooler where they would be received."""
    name = "wake-ups"
    if arrive is None:
        what = "a pooler delivers none, so what is due within a second may start a second late"
        return Diagnosis(name, Level.WARNING, what, f"{_DIRECT} to the same database without the pooler")
    if not arrive:
        return Diagnosis(name, Level.PROBLEM, "what is sent does not arrive", f"{_DIRECT} to the same database")
    return Diagnosis(name, Level.OK, "arrive")


def on_unreachable_listener(reason: str) -> Diagnosis:
    return Diagnosis("wake-ups", Level.PROBLEM, reason, f"{_DIRECT} to a host that answers")


def on_replica(lag_seconds: float | None, most_seconds: float) -> Diagnosis:
    if lag_seconds is None:
        todo = "start `evertick scheduler`; if one runs, EVERTICK_DATABASE_REPLICA_URL names another database"
        return Diagnosis("replica", Level.WARNING, "has no heartbeats of schedulers, so it is not used", todo)
    what = f"at most {lag_seconds:.1f} s behind"
    if lag_seconds <= most_seconds:
        return Diagnosis("replica", Level.OK, what)
    todo = "look at its replication, or raise EVERTICK_DATABASE_REPLICA_MAX_LAG_SECONDS"
    return Diagnosis("replica", Level.WARNING, f"{what}, so it is not used", todo)


def on_unreachable_replica(reason: str) -> Diagnosis:
    return Diagnosis("replica", Level.WARNING, f"{reason}; the primary is read", "start it, or correct its URL")


def on_clock(skew_seconds: float) -> Diagnosis:
    ahead = "ahead of" if skew_seconds > 0 else "behind"
    what = f"this machine is {abs(skew_seconds):.3f} s {ahead} the database"
    if abs(skew_seconds) <= HARMLESS_SKEW_SECONDS:
        return Diagnosis("clock", Level.OK, what)
    todo = "harmless to Evertick, which goes by the database's clock; but logs will not match: check NTP on both"
    return Diagnosis("clock", Level.WARNING, what, todo)


def on_clock_steps(marks: Marks) -> Diagnosis:
    name = "clock steps"
    if marks.replan_from is not None:
        what = (
            f"the clock was set back: timers of {PARTITIONS - marks.replan_from} partitions are yet to be planned anew"
        )
        todo = "a janitor does it within minutes: start `evertick scheduler`, and look in its log if one runs"
        return Diagnosis(name, Level.WARNING, what, todo)
    behind = marks.marked_at - marks.trusted_at
    if behind > UNTRUSTED:
        what = (
            f"after a jump of the clock or an outage, what is kept for a time is kept by the time of"
            f" {marks.trusted_at:%Y-%m-%d %H:%M}, which is {rough_duration(behind)} behind and follows"
        )
        return Diagnosis(name, Level.WARNING, what, "check the clock of the database's server; if it is right, wait")
    ahead = marks.furthest_at - marks.marked_at
    if ahead > UNTRUSTED:
        return Diagnosis(name, Level.OK, f"the clock was once {rough_duration(ahead)} ahead of now")
    return Diagnosis(name, Level.OK, "none that matters")


def on_connections(used: int, most: int) -> Diagnosis:
    what = f"{used} of {most} in use"
    if used < BUSY * most:
        return Diagnosis("connections", Level.OK, what)
    level = Level.PROBLEM if used >= FULL * most else Level.WARNING
    return Diagnosis("connections", level, what, "raise max_connections, or run fewer processes")


def on_snapshot(oldest: OldestSnapshot | None) -> Diagnosis:
    name = "oldest snapshot"
    if oldest is None:
        return Diagnosis(name, Level.OK, "none but our own")
    since = "" if oldest.seconds is None else f" for {rough_duration(timedelta(seconds=oldest.seconds))}"
    holder = oldest.what if oldest.pid is None else f"pid {oldest.pid} ({oldest.what})"
    what = f"{holder} holds it{since}, {oldest.transactions:,} transactions back"
    seconds = oldest.seconds or 0.0
    if seconds < LONG_SECONDS and oldest.transactions < MANY_TRANSACTIONS:
        return Diagnosis(name, Level.OK, what)
    end = "end it" if oldest.pid is None else f"end it, or SELECT pg_terminate_backend({oldest.pid})"
    level = Level.PROBLEM if seconds >= TOO_LONG_SECONDS else Level.WARNING
    return Diagnosis(name, level, what, f"vacuum can remove nothing newer, so that timers grow slow: {end}")


def on_schema(mismatch: str | None) -> Diagnosis:
    if mismatch is None:
        return Diagnosis("schema", Level.OK, "fits this version")
    what, _, todo = mismatch.rpartition(": ")
    return Diagnosis("schema", Level.PROBLEM, what or mismatch, todo)


def on_identity(known: Facts, name: str | None) -> Diagnosis:
    """`name`: of the processes that would start here."""
    part = "identity"
    if known.suspected is not None:
        return Diagnosis(part, Level.PROBLEM, explain(known.suspected), REMEDY)
    if known.name != name:
        here = "EVERTICK_CLUSTER is not set here" if name is None else f"EVERTICK_CLUSTER is {name} here"
        what = f"the cluster {'has no name' if known.name is None else f'is called {known.name}'}, and {here}"
        todo = "processes do not start with it: set it to the same name, or run `evertick cluster confirm`"
        return Diagnosis(part, Level.PROBLEM, what, todo)
    if not known.is_confirmed:
        what = "the server was started since a scheduler was last at work, so nothing fires or runs yet"
        return Diagnosis(part, Level.WARNING, what, "start `evertick scheduler`, and look in its log if one runs")
    if hidden := " and ".join(unreadable(known.here)):
        what = f"the server does not tell {hidden}: some restored copies would go on by themselves"
        todo = "set EVERTICK_CLUSTER to another name for each copy, or GRANT EXECUTE ON FUNCTION pg_control_system()"
        return Diagnosis(part, Level.WARNING, what, todo)
    return Diagnosis(part, Level.OK, "confirmed" if known.confirmed_at else "new, no scheduler has worked here yet")


def on_versions(running: Collection[str]) -> Diagnosis:
    what = f"Evertick {__version__}, tz database {tzdb.VERSION}"
    others = sorted(set(running) - {__version__})
    if not others:
        return Diagnosis("versions", Level.OK, what)
    todo = "finish the upgrade: nodes should run one version before long"
    return Diagnosis("versions", Level.WARNING, f"{what}; schedulers run {', '.join(others)}", todo)


def on_partitions(unheld: int, nodes: Sequence[str]) -> Diagnosis:
    schedulers = f"{len(nodes)} scheduler{'' if len(nodes) == 1 else 's'}"
    if not unheld:
        return Diagnosis("partitions", Level.OK, f"all {PARTITIONS} held by {schedulers}")
    if not nodes:
        todo = "start `evertick scheduler`"
        return Diagnosis("partitions", Level.PROBLEM, "no scheduler is alive, so nothing fires", todo)
    todo = "wait some seconds and look again: a scheduler that just came or went is the usual reason"
    return Diagnosis("partitions", Level.WARNING, f"{unheld} of {PARTITIONS} held by none of {schedulers}", todo)


def on_days(missing: Sequence[date], ahead: int) -> Diagnosis:
    if not missing:
        return Diagnosis("days ahead", Level.OK, f"ledgers have room for today and {ahead} more days")
    what = f"the ledgers lack {', '.join(day.isoformat() for day in missing)}"
    todo = "a janitor adds them each minute: start `evertick scheduler`, and look in its log if one runs"
    # Without today nothing fires; one more day is missing each midnight until the janitor comes round.
    level = Level.PROBLEM if len(missing) > ahead else Level.WARNING
    return Diagnosis("days ahead", level, what, todo)


def on_lag(oldest: OldestDueTimer | None) -> Diagnosis:
    if oldest is None:
        return Diagnosis("lag", Level.OK, "no timer is overdue")
    late = oldest.now_at - oldest.due_at
    what = f"the oldest due timer waits for {rough_duration(late)} ({format_id(Prefix.JOB, oldest.job_id)})"
    if late < LATE:
        return Diagnosis("lag", Level.OK, what)
    todo = "start schedulers or more of them; after an outage, give them time to catch up"
    return Diagnosis("lag", Level.PROBLEM if late >= TOO_LATE else Level.WARNING, what, todo)


def on_leases(stuck: StuckLeases) -> Diagnosis:
    if stuck.oldest_at is None:
        return Diagnosis("leases", Level.OK, "none is stuck")
    what = f"{stuck.leases:,} ran out and were not reaped, the oldest {_ago(stuck.oldest_at, stuck.now_at)}"
    todo = "the scheduler that holds their partition reaps them: look whether one runs, and in its log"
    return Diagnosis("leases", Level.PROBLEM, what, todo)


def on_orphans(tokens: Sequence[tuple[int, int]]) -> Diagnosis:
    name = "attempts without a lease"
    if not tokens:
        return Diagnosis(name, Level.OK, "none")
    what = f"{len(tokens):,} were handed out and are in nobody's hands, such as {format_token(*tokens[0])}"
    todo = "the scheduler that holds their partition takes them as lost: look whether one runs, and report this fault"
    return Diagnosis(name, Level.PROBLEM, what, todo)


def on_unserved(unserved: Sequence[UnservedAttempts]) -> Diagnosis:
    name = "handlers that nobody serves"
    if not unserved:
        what = "no run that a worker put back waits for one; `evertick queues list` names those of all jobs"
        return Diagnosis(name, Level.OK, what)
    what = "; ".join(
        f"{each.handler or 'HTTP'} in {each.queue} of {each.tenant}: {each.attempts:,}, the oldest ready"
        f" {_ago(each.oldest_at, each.now_at)}"
        for each in unserved
    )
    todo = "start a worker that has these handlers, for HTTP a dispatcher, or cancel the runs"
    return Diagnosis(name, Level.WARNING, what, todo)


def on_workers(alive: Sequence[AliveRole], idle: Sequence[IdleQueue], now_at: datetime) -> Diagnosis:
    """Who is alive, and the queues with work that has waited for long although nobody serves them."""
    what = "; ".join(
        f"{counted(role.workers, role.role.replace('_', ' '))} on {', '.join(role.queues)}" for role in alive
    )
    if not idle:
        return Diagnosis("workers", Level.OK, what or "none, and nothing waits for one")
    waits = "; ".join(
        f"no worker serves queue {each.queue} of {each.tenant}: {counted(each.attempts, 'attempt')} in it,"
        f" the oldest due {_ago(each.oldest_at, now_at)}"
        for each in idle
    )
    todo = "start a worker with these queues, for http and brokers `evertick up` or a dispatcher"
    return Diagnosis("workers", Level.WARNING, f"{waits}; alive: {what or 'none'}", todo)


def on_ready(queues: Sequence[ReadyQueue]) -> Diagnosis:
    if not queues:
        return Diagnosis("ready work", Level.OK, "no attempt waits")
    what = "; ".join(
        f"{queue.queue} of {queue.tenant}: {queue.attempts:,}, oldest due {_ago(queue.oldest_at, queue.now_at)}"
        for queue in queues
    )
    waits = max(queue.now_at - queue.oldest_at for queue in queues)
    if waits < TOO_LATE:
        return Diagnosis("ready work", Level.OK, what)
    todo = "start workers for these queues, or more of them"
    return Diagnosis("ready work", Level.WARNING, what, todo)


def on_dead_letters(letters: int) -> Diagnosis:
    if not letters:
        return Diagnosis("dead letters", Level.OK, "none")
    what = f"{letters:,} or more" if letters >= MAX_LETTERS else f"{letters:,}"
    todo = "look at them with `evertick dead-letters list`, then replay or dismiss them"
    return Diagnosis("dead letters", Level.WARNING, what, todo)


def on_events(lag: EventLag) -> Diagnosis:
    if lag.unplaced_seconds > LATE.total_seconds():
        what = f"the oldest that is in no stream yet is {rough_duration(timedelta(seconds=lag.unplaced_seconds))} old"
        todo = "a janitor gives them their places: start `evertick scheduler`, and look in its log if one runs"
        return Diagnosis("events", Level.PROBLEM, what, todo)
    if lag.sinks_failing:
        tenant = (
            "" if lag.failing_tenant_id is None else f", as that of {format_id(Prefix.TENANT, lag.failing_tenant_id)}"
        )
        what = f"{counted(lag.sinks_failing, 'failing sink')}{tenant}: {lag.last_error}"
        todo = "`evertick events stream` has its state; what is older than EVERTICK_EVENT_DAYS is not sent any more"
        return Diagnosis("events", Level.WARNING, what, todo)
    return Diagnosis(
        "events", Level.OK, f"{counted(lag.sinks_behind, 'sink')} behind" if lag.sinks_behind else "all are sent"
    )


def on_archive(marks: ArchiveMarks, summary: ArchiveSummary, waiting: int, url: str | None) -> Diagnosis:
    """`waiting`: days that are older than history is kept; `url`: the archive by the settings here."""
    if not marks.is_on:
        what = "off" if url is None else "by the settings here it is on, but no janitor with them has run"
        return Diagnosis("archive", Level.OK if url is None else Level.WARNING, what, _ARCHIVE_STARTS if url else None)
    days = (
        f"{counted(summary.days, 'day')} at {marks.url}, the last {summary.last_day}"
        if summary.days
        else f"at {marks.url}"
    )
    if marks.error is not None:
        level = Level.PROBLEM if waiting >= MANY_DAYS else Level.WARNING
        todo = "make the storage available: until then these days stay in the database, which grows"
        return Diagnosis("archive", level, f"{counted(waiting, 'day')} to be archived: {marks.error}", todo)
    if url is None:
        what = f"{days}; the settings here have none, so that processes with them cannot read or write it"
        return Diagnosis("archive", Level.WARNING, what, "set EVERTICK_ARCHIVE_URL, or run `evertick archive off`")
    if waiting >= MANY_DAYS:
        todo = "look in the janitor's log: an export may take long, or a day has runs that are not over"
        return Diagnosis("archive", Level.WARNING, f"{days}; {waiting} days wait", todo)
    return Diagnosis("archive", Level.OK, days)


def on_egress(words: str) -> Diagnosis:
    return Diagnosis("webhooks", Level.OK, f"by the settings here, {words}")


def on_brokers(used: Sequence[str], missing: Sequence[str]) -> Diagnosis:
    """`used`: the types of the tenants' connections; `missing`: why some of them cannot be used here."""
    if not missing:
        return Diagnosis("brokers", Level.OK, f"clients for {', '.join(used)} are installed" if used else "none in use")
    todo = "install them where dispatchers run; a dispatcher without a client leaves its messages to others"
    return Diagnosis("brokers", Level.WARNING, "; ".join(missing), todo)


def on_dead_tuples(tuples: DeadTuples) -> Diagnosis:
    what = f"{tuples.dead:,} dead beside {tuples.live:,} live rows in timers"
    if tuples.dead < max(MANY_DEAD_TUPLES, tuples.live):
        return Diagnosis("dead tuples", Level.OK, what)
    todo = "vacuum falls behind: look for the oldest snapshot above, and whether autovacuum is on"
    return Diagnosis("dead tuples", Level.WARNING, what, todo)


def _ago(at: datetime, now_at: datetime) -> str:
    return f"{rough_duration(now_at - at)} ago"
