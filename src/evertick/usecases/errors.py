"""Why a use case was refused, beside the errors of its input, which are the domain's.

EvertickError
├── ResourceNotFound
│   ├── JobNotFound       no such job, or another tenant's, which must look the same
│   ├── RunNotFound       no such run of the tenant's jobs
│   ├── LetterNotFound    the run is no dead letter, or not any more
│   ├── ReplayNotFound    no such replay of the tenant
│   ├── SmearNotFound     no such smear of the tenant
│   ├── KeyNotFound       no such API key of the tenant
│   ├── AlertTargetNotFound  the tenant has no alert target
│   ├── TargetHostNotFound  no target host of this name failed lately
│   ├── ConnectionNotFound  no such connection of the tenant
│   └── TenantNotFound    no such tenant, or none that the caller may see
├── ConnectionInUse       jobs, or the sink of events, use the connection
├── NoArchive             archived runs were asked for, and there is no archive
├── KeyEnded              the API key has expired, or another one has taken its place
├── VersionConflict       the job was edited since the caller read it
├── SubmissionInFlight    another transaction submits with the same idempotency key
├── RunFinished           nothing is left to cancel
├── RunUnfinished         nothing is there to repeat yet
├── ReplayFinished        the replay is over, or was cancelled
├── TooManyReplays        so many of the tenant's are running already
├── SmearFinished         the smear is undone, or is about to be
├── TooManySmears         so many of the tenant's are running already
├── NothingToSmear        no job of the rules may get the jitter
├── QuotaReached          a quota of the tenant does not admit it, for a time or at all
└── InvalidInput
    └── NameTaken         another job of the tenant has the name, or another tenant
"""

from typing import ClassVar

from evertick.domain.admission import Refused, Throttled
from evertick.domain.errors import EvertickError, InvalidInput
from evertick.domain.limits import QuotaName
from evertick.domain.policies import ConcurrentPolicy
from evertick.domain.states import ReplayStatus, RunStatus, SmearStatus


class ResourceNotFound(EvertickError):  # noqa: N818 - these say what is wrong, not that it is an error
    """What an id or a name should name does not exist for this tenant."""

    kind: ClassVar[str]

    def __init__(self, name: str) -> None:
        super().__init__(f"there is no {self.kind} {name}")


class JobNotFound(ResourceNotFound):
    """There is no such job."""

    kind = "job"


class RunNotFound(ResourceNotFound):
    """There is no such run."""

    kind = "run"


class LetterNotFound(ResourceNotFound):
    """There is no such dead letter."""

    kind = "dead letter of run"

    def __init__(self, run_id: str) -> None:
        super().__init__(f"{run_id}: it was replayed or dismissed, or never died")


class ReplayNotFound(ResourceNotFound):
    """There is no such replay."""

    kind = "replay"


class SmearNotFound(ResourceNotFound):
    """There is no such smear."""

    kind = "smear"


class KeyNotFound(ResourceNotFound):
    """There is no such API key."""

    kind = "API key"


class TargetHostNotFound(ResourceNotFound):
    """No deliveries of the tenant to such a host failed lately."""

    kind = "failing target host"


class ConnectionNotFound(ResourceNotFound):
    """There is no such connection to a broker."""

    kind = "connection"


class AlertTargetNotFound(ResourceNotFound):
    """The tenant has no alert target."""

    kind = "alert target"

    def __init__(self) -> None:
        super().__init__("of this tenant")


class EventStreamNotFound(ResourceNotFound):
    """The tenant keeps no events."""

    kind = "event stream"

    def __init__(self) -> None:
        super().__init__("of this tenant: PUT /events/stream begins one")


class TenantNotFound(ResourceNotFound):
    """There is no such tenant."""

    kind = "tenant"


class QueueNotFound(ResourceNotFound):
    """There is no such queue."""

    kind = "queue"


class ConnectionInUse(EvertickError):  # noqa: N818
    """Jobs or the sink of events use the connection, so it cannot be removed or become one of another type."""

    def __init__(self, name: str, use: str) -> None:
        super().__init__(f"connection {name!r} is in use: {use}")


class NoArchive(EvertickError):  # noqa: N818
    """Archived runs were asked for where there is no archive."""

    def __init__(self) -> None:
        super().__init__("there is no archive here: EVERTICK_ARCHIVE_URL is not set")


class KeyEnded(EvertickError):  # noqa: N818
    """The API key has expired or has a successor, so it cannot get one."""

    def __init__(self, key_id: str) -> None:
        super().__init__(f"API key {key_id} has expired or was replaced already")


class SubmissionInFlight(EvertickError):  # noqa: N818
    """Another transaction that is not over submits with the same idempotency key: try again later."""

    def __init__(self, key: str) -> None:
        super().__init__(f"another transaction submits with the idempotency key {key!r}: try again when it is over")


class VersionConflict(EvertickError):  # noqa: N818
    """The job is at another spec_version than the caller expects."""

    def __init__(self, expected: int | None, current: int) -> None:
        other = "which is none that was expected" if expected is None else f"not {expected}"
        super().__init__(f"the job is at spec_version {current}, {other}: read it again")
        self.current = current


class RunFinished(EvertickError):  # noqa: N818
    """The run is over, so it cannot be cancelled."""

    def __init__(self, run_id: str, status: RunStatus) -> None:
        super().__init__(f"run {run_id} is over already: {status}")


_FULL: dict[str, str] = {
    ConcurrentPolicy.ALLOW: "as many are open as its max_concurrent allows",
    ConcurrentPolicy.QUEUE: "another waits behind it already, and concurrent_policy QUEUE lets one wait",
}


class TriggerRefused(EvertickError):  # noqa: N818
    """The policy of the job allows no run beside those that are open."""

    def __init__(self, run_id: str, policy: str) -> None:
        why = _FULL.get(policy, f"its concurrent_policy {policy} allows no other beside it")
        super().__init__(
            f"run {run_id} of the job is not over, and {why}: wait for it, cancel it, or force the trigger"
        )
        self.run_id = run_id


class RunUnfinished(EvertickError):  # noqa: N818
    """The run is not over, so it cannot be replayed."""

    def __init__(self, run_id: str, status: RunStatus) -> None:
        super().__init__(f"run {run_id} is not over yet: {status}")


class ReplayFinished(EvertickError):  # noqa: N818
    """The replay is over, so it cannot be cancelled."""

    def __init__(self, replay_id: str, status: ReplayStatus) -> None:
        super().__init__(f"replay {replay_id} is over already: {status}")


class TooManyReplays(EvertickError):  # noqa: N818
    """So many replays of the tenant are running that there may be no other."""

    def __init__(self, limit: int) -> None:
        super().__init__(f"{limit} replays are running already: wait for one, or cancel one")


class SmearFinished(EvertickError):  # noqa: N818
    """The smear is undone or about to be, so it cannot be undone."""

    def __init__(self, smear_id: str, status: SmearStatus) -> None:
        super().__init__(f"smear {smear_id} cannot be undone: it is {status}")


class TooManySmears(EvertickError):  # noqa: N818
    """So many smears of the tenant are running that there may be no other."""

    def __init__(self, limit: int) -> None:
        super().__init__(f"{limit} smears are running already: wait for one")


class NothingToSmear(EvertickError):  # noqa: N818
    """No active job of the rules may get the jitter."""

    def __init__(self, jitter_seconds: int) -> None:
        super().__init__(
            f"no active job of these rules may get a jitter of {jitter_seconds} seconds: ask for the advice again"
        )


class QuotaReached(EvertickError):  # noqa: N818
    """A quota of the tenant does not admit it: `verdict` says which, and when it may."""

    def __init__(self, verdict: Throttled | Refused) -> None:
        super().__init__(refusal_text(verdict))
        self.verdict = verdict

    @property
    def quota(self) -> QuotaName:
        return self.verdict.quota

    def __reduce__(self) -> tuple[type["QuotaReached"], tuple[Throttled | Refused]]:
        return type(self), (self.verdict,)


def refusal_text(verdict: Throttled | Refused) -> str:
    """Which quota does not admit something, and what helps."""
    if isinstance(verdict, Throttled):
        return f"the quota {verdict.quota} does not admit more for now: try again in {verdict.retry_after_seconds} s"
    advice = "send fewer at once" if verdict.quota is QuotaName.SUBMIT_BURST else "make room, or ask for more"
    return f"the quota {verdict.quota} allows {verdict.limit}: {advice}"


class NameTaken(InvalidInput):
    """Another job of the tenant has the name, or another tenant."""

    def __init__(self, name: str, kind: str = "job") -> None:
        super().__init__("name", f"{name!r} is taken by another {kind}")
        self.name = name
        self.kind = kind

    def __reduce__(self) -> tuple[type["NameTaken"], tuple[str, str]]:
        return type(self), (self.name, self.kind)
