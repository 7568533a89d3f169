"""Why a use case was refused, beside the errors of its input, which are the domain's.

EvertickError
├── NotFound
│   ├── JobNotFound       no such job, or another tenant's, which must look the same
│   ├── RunNotFound       no such run of the tenant's jobs
│   ├── LetterNotFound    the run is no dead letter, or not any more
│   ├── KeyNotFound       no such API key of the tenant
│   └── TenantNotFound    no such tenant, or none that the caller may see
├── KeyEnded              the API key has expired, or another one has taken its place
├── VersionConflict       the job was edited since the caller read it
├── RunFinished           nothing is left to cancel
├── RunUnfinished         nothing is there to repeat yet
├── QuotaReached          the tenant has as many as it may
└── InvalidInput
    ├── NameTaken         another job of the tenant has the name
    └── TenantNameTaken   another tenant has the name
"""

from evertick.domain.admission import QuotaName, Refused
from evertick.domain.errors import EvertickError, InvalidInput
from evertick.domain.states import RunStatus


class NotFound(EvertickError):  # noqa: N818 - these say what is wrong, not that it is an error
    """What an id or a name should name does not exist for this tenant."""


class JobNotFound(NotFound):
    """There is no such job."""

    def __init__(self, job: str) -> None:
        super().__init__(f"there is no job {job}")


class RunNotFound(NotFound):
    """There is no such run."""

    def __init__(self, run_id: str) -> None:
        super().__init__(f"there is no run {run_id}")


class LetterNotFound(NotFound):
    """There is no such dead letter."""

    def __init__(self, run_id: str) -> None:
        super().__init__(f"there is no dead letter of run {run_id}: it was replayed or dismissed, or never died")


class KeyNotFound(NotFound):
    """There is no such API key."""

    def __init__(self, key_id: str) -> None:
        super().__init__(f"there is no API key {key_id}")


class KeyEnded(EvertickError):  # noqa: N818
    """The API key has expired or has a successor, so it cannot get one."""

    def __init__(self, key_id: str) -> None:
        super().__init__(f"API key {key_id} has expired or was replaced already")


class TenantNotFound(NotFound):
    """There is no such tenant."""

    def __init__(self, tenant_id: str) -> None:
        super().__init__(f"there is no tenant {tenant_id}")


class VersionConflict(EvertickError):  # noqa: N818
    """The job is at another spec_version than the caller expects."""

    def __init__(self, expected: int, current: int) -> None:
        super().__init__(f"the job is at spec_version {current}, not {expected}: read it again")
        self.current = current


class RunFinished(EvertickError):  # noqa: N818
    """The run is over, so it cannot be cancelled."""

    def __init__(self, run_id: str, status: RunStatus) -> None:
        super().__init__(f"run {run_id} is over already: {status}")


class RunUnfinished(EvertickError):  # noqa: N818
    """The run is not over, so it cannot be replayed."""

    def __init__(self, run_id: str, status: RunStatus) -> None:
        super().__init__(f"run {run_id} is not over yet: {status}")


class QuotaReached(EvertickError):  # noqa: N818
    """The tenant has as many of something as it may."""

    def __init__(self, quota: QuotaName, limit: int) -> None:
        super().__init__(f"the quota {quota} allows {limit}")
        self.refused = Refused(quota, limit)


class NameTaken(InvalidInput):
    """Another job of the tenant has the name."""

    def __init__(self, name: str) -> None:
        super().__init__("name", f"{name!r} is taken by another job")
        self.name = name

    def __reduce__(self) -> tuple[type["NameTaken"], tuple[str]]:  # type: ignore[override]
        return type(self), (self.name,)


class TenantNameTaken(InvalidInput):
    """Another tenant has the name."""

    def __init__(self, name: str) -> None:
        super().__init__("name", f"{name!r} is taken by another tenant")
        self.name = name

    def __reduce__(self) -> tuple[type["TenantNameTaken"], tuple[str]]:  # type: ignore[override]
        return type(self), (self.name,)
