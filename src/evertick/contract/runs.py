"""Runs, gaps and dead letters, and what may be asked about them."""

from enum import StrEnum
from typing import Annotated, Any, TypeAlias

from msgspec import Meta, Struct, field

from evertick.contract import patterns
from evertick.contract.annotations import (
    CURSOR,
    Count,
    Instant,
    JobId,
    Limit,
    Ordinal,
    ReplayId,
    RunId,
    Time,
    Token,
    words,
)
from evertick.domain.gate import WaitingFor
from evertick.domain.retry import GiveUpReason
from evertick.domain.states import GapReason, GapStatus, OpenAttempt, Outcome, ReplayStatus, RunReason, RunStatus

DEFAULT_RATE = 100.0
"""Of replaying dead letters, in runs a second."""


class Run(Struct, frozen=True, kw_only=True):
    """A run by its latest attempt. `attempt` is 0 before the first; times and the rest are the latest one's.

    The start of an attempt that runs is known after its worker's next heartbeat, by default within ten seconds.
    """

    run_id: RunId
    job_id: JobId
    scheduled_at: Time
    started_at: Time | None
    finished_at: Time | None
    duration_ms: int | None
    status: Annotated[str, words(RunStatus)]
    attempt: Count
    reason: Annotated[str, words(RunReason)]
    spec_version: Ordinal
    worker_id: str | None
    result_code: int | None
    error: str | None
    waiting_for: Annotated[
        Annotated[str, words(WaitingFor)] | None,
        Meta(description="Why it waits although it is due: for a place of its `concurrency_key`, or for its turn."),
    ] = None
    name: Annotated[str | None, Meta(description="Of its job. Null if that was removed long ago.")] = None
    handler: Annotated[str | None, Meta(description="What a worker calls; null if Evertick delivers it.")] = None
    queue: Annotated[str | None, Meta(description="Where its latest attempt is or was; null before the first.")] = None
    waiting: Annotated[
        str | None,
        Meta(description="Why no worker has taken it, for people: for example that no worker serves its handler."),
    ] = None
    progress: Annotated[str | None, Meta(description="How far it is while it runs, in the words of its handler.")] = (
        None
    )


class Gap(Struct, frozen=True, kw_only=True):
    """Ticks that did not run, from `scheduled_at` to `until`. It stands in a list of runs where they would."""

    job_id: JobId
    status: Annotated[str, words(GapStatus)]
    reason: Annotated[str, words(GapReason)]
    scheduled_at: Time
    until: Time
    count: Ordinal
    spec_version: Ordinal
    run_id: None = None
    behind: Annotated[RunId | None, Meta(description="Of an overlap: the run that was open.")] = None


RunOrGap: TypeAlias = Run | Gap


class Attempt(Struct, frozen=True, kw_only=True):
    """One attempt of a run. `result` is null while it is open."""

    token: Token
    attempt: Ordinal
    status: Annotated[str, words(OpenAttempt, Outcome)]
    due_at: Time
    started_at: Time | None
    finished_at: Time | None
    duration_ms: int | None
    worker_id: str | None
    result_code: int | None
    error: str | None
    excerpt: Annotated[str, Meta(description="The beginning of what came back.")] | None
    result: Annotated[str, words(Outcome)] | None
    leased_at: Annotated[
        Time | None,
        Meta(
            description="When a worker took it. Null before that, and where it is not known: of archived runs, in"
            " events, of attempts whose worker was lost, and of those whose outcome a broker's consumer reported."
        ),
    ] = None


class RunDetail(Run, frozen=True, kw_only=True):
    """A run with all its attempts, the first one first."""

    attempts: tuple[Attempt, ...]
    output: Annotated[
        Any,
        Meta(
            description="What its handler returned, up to 64 KB of JSON; null if nothing, or if it could not be kept."
            " Archived runs have only its beginning, the `excerpt` of the attempt."
        ),
    ] = None

    @property
    def run(self) -> Run:
        """The run alone."""
        return Run(**{name: getattr(self, name) for name in Run.__struct_fields__})


class HistoryStatus(StrEnum):
    """The status of a run, or of a gap in its place."""

    PENDING = RunStatus.PENDING
    RUNNING = RunStatus.RUNNING
    RETRYING = RunStatus.RETRYING
    SUCCESS = RunStatus.SUCCESS
    DEAD = RunStatus.DEAD
    CANCELLED = RunStatus.CANCELLED
    SKIPPED = GapStatus.SKIPPED
    MISSED = GapStatus.MISSED

    @property
    def meant(self) -> RunStatus | GapStatus:
        return GapStatus(self.value) if self.value in set(GapStatus) else RunStatus(self.value)


Archived = Annotated[
    bool,
    Meta(description="Also what was archived, which takes longer. Pages may be short, even empty, before the last."),
]


class RunQuery(Struct, forbid_unknown_fields=True):
    archive: Archived = False


class JobRunsQuery(Struct, forbid_unknown_fields=True, rename={"from_at": "from", "to_at": "to"}):
    status: HistoryStatus | None = None
    from_at: Instant | None = None
    to_at: Instant | None = None
    limit: Limit = 20
    cursor: Annotated[str, Meta(pattern=patterns.HISTORY), CURSOR] | None = None
    archive: Archived = False


class RunsQuery(Struct, forbid_unknown_fields=True, rename={"from_at": "from", "to_at": "to"}):
    status: RunStatus | None = None
    from_at: Instant | None = None
    to_at: Instant | None = None
    limit: Limit = 50
    cursor: Annotated[str, Meta(pattern=patterns.RUNS), CURSOR] | None = None
    archive: Archived = False


class DeadLetter(Struct, frozen=True, kw_only=True):
    """A run that failed for good. `result_code` and `error` are its last attempt's."""

    run_id: RunId
    job_id: JobId
    name: str
    scheduled_at: Time
    died_at: Time
    attempt: Count
    reason: Annotated[str, words(GiveUpReason)]
    spec_version: Ordinal
    result_code: int | None
    error: str | None


class Replaying(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What becomes of the dead letters that a request replays."""

    replayed: Annotated[Count, Meta(description="So many dead letters are runs now.")]
    run_ids: Annotated[tuple[RunId, ...], Meta(description="Of the first thousand.")]
    last_due_at: Annotated[Time, Meta(description="When the last of them is due.")] | None
    has_more: Annotated[bool, Meta(description="More match than one request takes: `replay_id` replays them.")]
    replay_id: Annotated[ReplayId, Meta(description="The replay that goes on with the others.")] | None = None


LetterQueue = Annotated[str, Meta(pattern=patterns.QUEUE, description="Of jobs of this queue.")]
LetterError = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=200,
        pattern=patterns.STORABLE,
        description="With this text in the last attempt's error, in upper or lower case.",
    ),
]
LetterLabel = Annotated[str, Meta(pattern=patterns.LABEL, max_length=400, description="Of jobs that have it.")]


class LettersQuery(Struct, forbid_unknown_fields=True):
    job_id: JobId | None = None
    queue: LetterQueue | None = None
    error: LetterError | None = None
    label: LetterLabel | None = None
    limit: Limit = 50
    cursor: Annotated[str, Meta(pattern=patterns.LETTER), CURSOR] | None = None


class LetterFilter(Struct, forbid_unknown_fields=True):
    """Which dead letters; without a member, all of them."""

    job_id: JobId | None = None
    died_from: Instant | None = None
    died_before: Instant | None = None
    queue: LetterQueue | None = None
    error: LetterError | None = None
    label: LetterLabel | None = None


class ReplayRequest(Struct, forbid_unknown_fields=True):
    filter: LetterFilter = field(default_factory=LetterFilter)
    rate_per_second: Annotated[float, Meta(ge=0.01, le=1000)] = DEFAULT_RATE
    background: Annotated[bool, Meta(description="Leave all of them to a replay, which can be cancelled.")] = False


class ReplayFilter(Struct, frozen=True, kw_only=True):
    """Which dead letters a replay wants; null: all of them."""

    job_id: JobId | None
    died_from: Time | None
    died_before: Time | None
    queue: str | None
    error: str | None
    label: str | None


class Replay(Struct, frozen=True, kw_only=True):
    """A replay of many dead letters, the newest first. Those that died after `created_at` are not part of it."""

    replay_id: ReplayId
    status: Annotated[str, words(ReplayStatus)]
    filter: ReplayFilter
    rate_per_second: float
    replayed: Annotated[Count, Meta(description="So many dead letters are runs now.")]
    looked_at: Annotated[Count, Meta(description="So many were compared with the filter.")]
    remaining: Annotated[Count, Meta(description="Among the next 10,000 so many fit. Null in lists.")] | None
    created_at: Time
    created_by: Annotated[str, Meta(description="As in the audit log.")]
    next_batch_at: Annotated[Time, Meta(description="When it goes on.")] | None
    finished_at: Time | None


class ReplaysQuery(Struct, forbid_unknown_fields=True):
    limit: Limit = 50
    cursor: Annotated[ReplayId, CURSOR] | None = None
