"""Submitting one-offs: in a transaction of their own, or in one that the application has open; and waiting for them."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Generic, Protocol, TypeVar, cast

from evertick.contract.runs import RunDetail
from evertick.domain.errors import InvalidInput, ResultNotKept, RunCancelled, RunFailed
from evertick.domain.ids import Prefix, format_id, format_run_id, parse_id, parse_run_id
from evertick.domain.schedule.instants import from_us, to_us
from evertick.domain.states import RunStatus
from evertick.runtime.tracing import current_traceparent
from evertick.sdk.connections import Database, Sqlite, database_of
from evertick.sdk.process import AppConnection
from evertick.usecases import idempotency
from evertick.usecases.context import TenantContext
from evertick.usecases.errors import NameTaken, RunNotFound, SubmissionInFlight
from evertick.usecases.idempotency import Answer, InFlight, KeyedRequest, OtherRequest
from evertick.usecases.jobs import costs, reading as jobs
from evertick.usecases.jobs.create import create
from evertick.usecases.jobs.submit import (
    PreparedJob,
    Receipt,
    Written,
    key_reused,
    keyed,
    prepare,
    read_receipt,
    with_references,
)
from evertick.usecases.runs import reading as runs

Connecting = Callable[[], Awaitable[AppConnection]]
Seconds = float | timedelta
IN_FLIGHT_PAUSES = (0.05, 0.1, 0.2, 0.4, 0.8, 1.6)
"""Seconds to wait before each further try, while another transaction submits with the same idempotency key."""
_T = TypeVar("_T")
_Result_co = TypeVar("_Result_co", covariant=True)


class Calling(Protocol):
    """Runs what is async on another loop, for sync code."""

    def __call__(self, work: Coroutine[Any, Any, _T], /) -> _T: ...


def _as_it_is(output: Any) -> Any:
    return output


@dataclass(frozen=True, slots=True)
class Submitted(Generic[_Result_co]):
    """A run that was submitted. It may have begun before `submit` returned."""

    job_id: str
    run_id: str
    fire_at: datetime
    _connection: Connecting = field(repr=False, compare=False)
    _wake: Callable[[], None] = field(default=lambda: None, repr=False, compare=False)
    _read_output: Callable[[Any], Any] = field(default=_as_it_is, repr=False, compare=False)

    async def status(self) -> RunStatus:
        """The current status of the run. Raises JobNotFound if it was deleted before its fire time."""
        tenant = (await self._connection()).tenant
        try:
            return RunStatus((await runs.get_run(tenant, self.run_id)).status)
        except RunNotFound:
            await jobs.get(tenant, self.job_id)
            return RunStatus.PENDING

    async def wait(self, timeout: Seconds | None = None) -> RunDetail:  # noqa: ASYNC109 - as in asyncio's own functions
        """The run when it is over: a success, dead or cancelled. One that failed and is retried is not over.

        TimeoutError: it is not over after `timeout` seconds. The run goes on.
        """
        connected = await self._connection()
        seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
        limit = asyncio.timeout(seconds)
        try:
            async with limit:
                return await connected.waits.finished(self.run_id)
        except TimeoutError:
            if not limit.expired():
                raise
            raise TimeoutError(f"{self.run_id} is not over after {seconds:g} s") from None

    async def result(self, timeout: Seconds | None = None) -> _Result_co:  # noqa: ASYNC109 - as `wait`
        """What the handler returned, once the run is over, converted by the annotation of its result.

        RunFailed: the run is dead, or, as RunCancelled, was cancelled. ResultNotKept: it succeeded, and what it
        returned is no JSON or has more bytes than are kept. TimeoutError as in `wait`.
        """
        run = await self.wait(timeout)
        if run.status != RunStatus.SUCCESS:
            failed = RunCancelled if run.status == RunStatus.CANCELLED else RunFailed
            raise failed(run.run_id, run.status, run.attempt, run.error)
        excerpt = run.attempts[-1].excerpt if run.attempts else None
        if run.output is None and excerpt is not None and excerpt != "null":
            raise ResultNotKept(run.run_id, excerpt)
        return cast("_Result_co", None if run.output is None else self._read_output(run.output))

    def wake(self) -> None:
        """Wake the schedulers, after the application's transaction has committed; else they find it by their poll."""
        self._wake()


@dataclass(frozen=True, slots=True)
class SubmittedSync(Generic[_Result_co]):
    """A run that sync code has submitted: as `Submitted`, for sync code."""

    _submitted: Submitted[_Result_co]
    _call: Calling = field(repr=False, compare=False)

    @property
    def job_id(self) -> str:
        return self._submitted.job_id

    @property
    def run_id(self) -> str:
        return self._submitted.run_id

    @property
    def fire_at(self) -> datetime:
        return self._submitted.fire_at

    def status(self) -> RunStatus:
        """The current status of the run. Raises JobNotFound if it was deleted before its fire time."""
        return self._call(self._submitted.status())

    def wait(self, timeout: Seconds | None = None) -> RunDetail:
        """The run when it is over. TimeoutError: it is not, after `timeout` seconds."""
        return self._call(self._submitted.wait(timeout))

    def result(self, timeout: Seconds | None = None) -> _Result_co:
        """What the handler returned, once the run is over. It raises what `Submitted.result` raises."""
        return self._call(self._submitted.result(timeout))

    def wake(self) -> None:
        """Wake the schedulers, after the application's transaction has committed; else they find it by their poll."""
        self._submitted.wake()


def submitted_run(run_id: str, connection: Connecting) -> Submitted[Any]:
    """The run of an id."""
    key = parse_run_id(run_id)
    return Submitted(format_id(Prefix.JOB, key.job_id), run_id, from_us(key.fire_at_us), connection)


async def submit(fields: Mapping[str, Any], connection: Connecting, key: str | None = None) -> Submitted[Any]:
    """Create the job of a one-off. QuotaReached: a quota of the tenant does not admit it now.

    With an idempotency key it is created once: the same submission gets the same run again.
    """
    connected = await connection()
    tenant = replace(connected.tenant, trace_parent=current_traceparent())
    if key is None:
        async with connected.admission.of(costs.of_creation(fields)) as entry:
            receipt = await _created(tenant, fields)
            entry.created = 1
    else:
        receipt = await _submit_once(connected, tenant, fields, keyed(key, fields))
    return Submitted(receipt.job_id, receipt.run_id, receipt.fire_at, connection)


async def _created(tenant: TenantContext, fields: Mapping[str, Any]) -> Receipt:
    job = await create(tenant, fields)
    assert job.next_run_at is not None, "a one-off has one"
    run_id = format_run_id(parse_id(Prefix.JOB, job.job_id), to_us(job.next_run_at))
    return Receipt(job.job_id, run_id, job.next_run_at)


async def _submit_once(
    connected: AppConnection, tenant: TenantContext, fields: Mapping[str, Any], request: KeyedRequest
) -> Receipt:
    for pause in (*IN_FLIGHT_PAUSES, None):
        if (given := await earlier(tenant, request)) is not None:
            return given
        made: list[Receipt] = []

        async def act(inside: TenantContext, made: list[Receipt] = made) -> Answer:
            made.append(await _created(inside, fields))
            return Answer(201, {}, made[0].encode().encode())

        async with connected.admission.of(costs.of_creation(fields)) as entry:
            result = await idempotency.answer_once(tenant, request, act)
            entry.created = len(made)
        if not isinstance(result, InFlight):
            return made[0] if made else _receipt(result)
        if pause is not None:
            await asyncio.sleep(pause)
    raise SubmissionInFlight(request.key)


async def earlier(tenant: TenantContext, request: KeyedRequest) -> Receipt | None:
    """What the same submission was answered with before, if it was."""
    (found,) = await idempotency.earlier(tenant, [request])
    return None if found is None else _receipt(found)


def _receipt(found: Answer | OtherRequest | InFlight | None) -> Receipt:
    if not isinstance(found, Answer):
        raise key_reused()
    return read_receipt(found.body)


class Submission:
    """A one-off that the application's transaction writes.

    Its steps that use our own connection are async. The statement on the application's connection is between them, in
    the thread and in the manner of the application. With an idempotency key, the transaction keeps that too.
    """

    def __init__(
        self, fields: Mapping[str, Any], connecting: Connecting, connection: Any, key: str | None, *, is_async: bool
    ) -> None:
        self._fields = fields
        self._connecting = connecting
        self._request = None if key is None else keyed(key, fields)
        self.database = application_database(connection, is_async=is_async)
        self._connected: AppConnection | None = None
        self._job: PreparedJob | None = None

    async def prepare(self) -> tuple[str, dict[str, str]]:
        """The statement for the application's connection, with its parameters."""
        connected = self._connected = await self._connecting()
        async with connected.admission.of(costs.of_creation(self._fields)) as entry:
            tenant = replace(connected.tenant, trace_parent=current_traceparent())
            job = await prepare(tenant, connected.tenant_created_at, self._fields)
            self._job = job if self._request is None else job.keyed(self._request)
            entry.created = 1  # as far as we know: the application decides
        return self._statement()

    async def add_references(self) -> tuple[str, dict[str, str]]:
        """The same again, after what was missing has been committed."""
        connected = self._prepared[0]
        self._job = await with_references(connected.tenant, self._prepared[1])
        return self._statement()

    def submitted(self, written: str) -> Submitted[Any]:
        connected, job = self._prepared
        if written.startswith("{"):  # the answer to the same submission before
            receipt = read_receipt(written)
            return Submitted(receipt.job_id, receipt.run_id, receipt.fire_at, self._connecting)
        match Written(written):
            case Written.NAME_TAKEN:
                raise NameTaken(job.name)
            case Written.OTHER_DATABASE:
                raise InvalidInput("connection", "leads to another database than the app's")
            case Written.KEY_REUSED:
                raise key_reused()
            case Written.IN_FLIGHT:
                assert self._request is not None
                raise SubmissionInFlight(self._request.key)
        submitted: Submitted[Any] = Submitted(
            job.job_id, job.run_id, job.fire_at, self._connecting, lambda: connected.wake([job.number])
        )
        self.database.after_commit(submitted.wake)
        return submitted

    @property
    def _prepared(self) -> tuple[AppConnection, PreparedJob]:
        assert self._connected is not None
        assert self._job is not None
        return self._connected, self._job

    def _statement(self) -> tuple[str, dict[str, str]]:
        connected, job = self._prepared
        # As text: the application may have chosen how its connection encodes jsonb.
        call = f'SELECT "{connected.schema}".submit_prepared(CAST(CAST(:document AS text) AS jsonb))'
        return call, {"document": job.document}


def application_database(connection: Any, *, is_async: bool) -> Database:
    """The application's connection, which must be to PostgreSQL and in a transaction."""
    database = database_of(connection)
    if isinstance(database, Sqlite):
        raise InvalidInput("connection", "is one to SQLite: PostgreSQL is needed")
    if database.is_async and not is_async:
        raise InvalidInput("connection", "is async: use `await app.submit(...)`")
    database.check()
    return database


async def submit_in(submission: Submission) -> Submitted[Any]:
    """Write it with the application's connection, async or not."""
    written = await _run(submission.database, *await submission.prepare())
    if written == Written.INCOMPLETE:
        written = await _run(submission.database, *await submission.add_references())
    return submission.submitted(written)


def submit_in_sync(submission: Submission, call: Callable[[Coroutine[Any, Any, Any]], Any]) -> Submitted[Any]:
    """The same for sync code. `call` runs what is async on another loop; the application's connection stays here."""
    run = submission.database.run
    written = run(*call(submission.prepare()))
    if written == Written.INCOMPLETE:
        written = run(*call(submission.add_references()))
    return submission.submitted(written)


async def _run(database: Database, sql: str, parameters: dict[str, str]) -> str:
    found = database.run(sql, parameters)
    return cast("str", await found if database.is_async else found)
