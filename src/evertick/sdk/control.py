"""What an App lets its program do with jobs and runs: pause, resume, trigger, cancel, list, each with a twin for sync
code. A job is named by its name, its id, or the function that it was declared with; a run by its id.
"""

from collections.abc import Callable, Mapping
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypedDict, TypeVar, Unpack

from msgspec import UNSET

from evertick.contract.annotations import MAX_PER_PAGE
from evertick.domain.errors import InvalidInput
from evertick.executor.handlers.registry import to_json
from evertick.sdk.declarations import Declarations, Function
from evertick.sdk.opened import Opened, refuse_on_loop

if TYPE_CHECKING:
    from collections.abc import Awaitable, Coroutine

    from evertick.contract.job import Job
    from evertick.contract.runs import RunOrGap
    from evertick.sdk.process import AppConnection
    from evertick.sdk.submitting import Submitted, SubmittedSync
    from evertick.usecases.context import Page

_T = TypeVar("_T")
JobStatusWord = Literal["active", "paused", "finished"]
RunStatusWord = Literal["pending", "running", "retrying", "success", "dead", "cancelled", "skipped", "missed"]
MissedWord = Literal["skip", "run_once", "run_all"]


class JobFilters(TypedDict, total=False):
    """Which jobs to list; without a filter, all. `labels` must all be there with these values."""

    status: JobStatusWord | None
    labels: Mapping[str, str] | None
    name_prefix: str | None
    queue: str | None
    handler: str | None
    finished: bool
    """False leaves out jobs that have finished, such as one-offs that ran."""


class RunFilters(TypedDict, total=False):
    """Which runs to list; without a filter, all. Fire times are from `from_at` on and before `to_at`."""

    status: RunStatusWord | None
    from_at: datetime | None
    to_at: datetime | None


class _PageReader(Protocol[_T]):
    def __call__(self, *, limit: int, cursor: str | None) -> "Awaitable[Page[_T]]": ...


class AppControl:
    """The part of an App that controls jobs and runs."""

    declarations: Declarations
    _opened: Opened
    connection: "Callable[..., Coroutine[Any, Any, AppConnection]]"

    async def pause(self, job: str | Function, reason: str | None = None) -> "Job":
        """Let no tick of a job fire until it is resumed."""
        from evertick.usecases.jobs import costs, lifecycle  # noqa: PLC0415 - as in `App.connection`

        connected = await self.connection()
        async with connected.admission.of(costs.OF_CHANGE):
            return await lifecycle.pause(connected.tenant, await self._job_id(connected, job), reason)

    def pause_sync(self, job: str | Function, reason: str | None = None) -> "Job":
        """`pause` for sync code."""
        return self._call("pause", self.pause(job, reason))

    async def resume(self, job: str | Function, missed: MissedWord = "skip") -> "Job":
        """Let a paused job fire again. `missed` says what becomes of the ticks that have passed."""
        from evertick.domain.policies import Missed  # noqa: PLC0415
        from evertick.usecases.jobs import costs, lifecycle  # noqa: PLC0415

        connected = await self.connection()
        async with connected.admission.of(costs.OF_CHANGE):
            job_id = await self._job_id(connected, job)
            return await lifecycle.resume(connected.tenant, job_id, _word(Missed, "missed", missed))

    def resume_sync(self, job: str | Function, missed: MissedWord = "skip") -> "Job":
        """`resume` for sync code."""
        return self._call("resume", self.resume(job, missed))

    async def trigger(self, job: str | Function, payload: Any = UNSET, *, force: bool = False) -> "Submitted[Any]":
        """Run a job now, beside its schedule, with its own payload or another.

        TriggerRefused: its `concurrent_policy` allows no run beside those that are open, unless `force` is given.
        """
        from evertick.sdk.submitting import submitted_run  # noqa: PLC0415 - as in `App.connection`
        from evertick.usecases.jobs import costs  # noqa: PLC0415
        from evertick.usecases.runs import requests  # noqa: PLC0415

        connected = await self.connection()
        given = payload if payload is UNSET else to_json(payload)
        async with connected.admission.of(costs.OF_RUN):
            job_id = await self._job_id(connected, job)
            run_id = await requests.trigger(connected.tenant, job_id, given, force=force)
        return submitted_run(run_id, self.connection)

    def trigger_sync(self, job: str | Function, payload: Any = UNSET, *, force: bool = False) -> "SubmittedSync[Any]":
        """`trigger` for sync code."""
        return self._sync(self._call("trigger", self.trigger(job, payload, force=force)))

    async def cancel(self, run_id: str) -> None:
        """End a run: a running handler is asked to stop, and no attempt follows. A one-off whose time has not come is
        deleted. RunFinished: it is over already.
        """
        from evertick.usecases.jobs import costs  # noqa: PLC0415 - as in `App.connection`
        from evertick.usecases.runs import requests  # noqa: PLC0415

        connected = await self.connection()
        async with connected.admission.of(costs.OF_CHANGE):
            await requests.cancel_submitted(connected.tenant, run_id)

    def cancel_sync(self, run_id: str) -> None:
        """`cancel` for sync code."""
        self._call("cancel", self.cancel(run_id))

    async def list_jobs(self, *, limit: int = 50, **filters: Unpack[JobFilters]) -> "list[Job]":
        """Jobs in the order in which they were created, also those that other apps and the API have created."""
        from evertick.domain.states import JobStatus  # noqa: PLC0415
        from evertick.usecases.jobs import reading  # noqa: PLC0415

        given: dict[str, Any] = {**filters}
        if given.get("status") is not None:
            given["status"] = _word(JobStatus, "status", given["status"])
        return await _first(partial(reading.list_jobs, (await self.connection()).tenant, **given), limit)

    def list_jobs_sync(self, *, limit: int = 50, **filters: Unpack[JobFilters]) -> "list[Job]":
        """`list_jobs` for sync code."""
        return self._call("list_jobs", self.list_jobs(limit=limit, **filters))

    async def history(
        self, job: str | Function | None = None, *, limit: int = 20, **filters: Unpack[RunFilters]
    ) -> "list[RunOrGap]":
        """Runs, the newest first: of all jobs, or of one, with the ticks that did not run where they would stand."""
        from evertick.contract.runs import HistoryStatus  # noqa: PLC0415 - as in `App.connection`
        from evertick.usecases.runs import reading  # noqa: PLC0415

        given: dict[str, Any] = {**filters}
        if given.get("status") is not None:
            given["status"] = _word(HistoryStatus, "status", given["status"]).meant
        connected = await self.connection()
        if job is None:
            found = await _first(partial(reading.tenant_runs, connected.tenant, **given), limit)
            return list(found)
        job_id = await self._job_id(connected, job)
        return await _first(partial(reading.job_runs, connected.tenant, job_id, **given), limit)

    def history_sync(
        self, job: str | Function | None = None, *, limit: int = 20, **filters: Unpack[RunFilters]
    ) -> "list[RunOrGap]":
        """`history` for sync code."""
        return self._call("history", self.history(job, limit=limit, **filters))

    def submitted(self, run_id: str) -> "Submitted[Any]":
        """A run by its id, to ask for its status or to wait for its result; it may be submitted by another process."""
        from evertick.sdk.submitting import submitted_run  # noqa: PLC0415 - as in `App.connection`

        return submitted_run(run_id, self.connection)

    def submitted_sync(self, run_id: str) -> "SubmittedSync[Any]":
        """`submitted` for sync code."""
        return self._sync(self.submitted(run_id))

    async def _job_id(self, connected: "AppConnection", job: str | Function) -> str:
        from evertick.domain.ids import Prefix, parse_id  # noqa: PLC0415 - as in `App.connection`
        from evertick.usecases.jobs import reading  # noqa: PLC0415

        name = job if isinstance(job, str) else self.declarations.job_of(job)
        try:
            parse_id(Prefix.JOB, name)
        except InvalidInput:
            return (await reading.get_by_name(connected.tenant, name)).job_id
        return name

    def _call(self, method: str, work: "Coroutine[Any, Any, _T]") -> _T:
        try:
            refuse_on_loop(f"use `await app.{method}(...)`")
        except RuntimeError:
            work.close()
            raise
        return self._opened.loop_thread().call(work)

    def _sync(self, submitted: "Submitted[_T]") -> "SubmittedSync[_T]":
        from evertick.sdk.submitting import SubmittedSync  # noqa: PLC0415 - as in `App.connection`

        return SubmittedSync(submitted, partial(self._call, "submit"))


def _word(kind: Callable[[str], _T], field: str, word: str) -> _T:
    try:
        return kind(word)
    except ValueError:
        words = ", ".join(str(each) for each in kind)  # type: ignore[attr-defined] # an enum
        raise InvalidInput(field, f"must be one of {words}, not {word!r}") from None


async def _first(read: _PageReader[_T], limit: int) -> list[_T]:
    """The first items of a list that is read page by page."""
    found: list[_T] = []
    cursor: str | None = None
    while len(found) < limit:
        page = await read(limit=min(limit - len(found), MAX_PER_PAGE), cursor=cursor)
        found += page.items
        cursor = page.next
        if cursor is None:
            break
    return found
