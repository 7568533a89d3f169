"""For consumers of the messages that Evertick publishes to brokers: reads the run, and reports its outcome.

    async for record in consumer:                      # aiokafka
        try:
            async with receive.kafka(record, client) as run:
                await send_report(run.payload)
        except receive.StaleToken:
            pass                                       # cancelled, or another consumer's
        await consumer.commit()

With a client, for jobs with `completion: reported`: the block sends heartbeats while it runs, and then reports its
outcome. An exception in it is reported as a failure and goes no further: Evertick publishes the next attempt as a
message of its own. DoNotRetry and RetryLater mean what they mean in handlers. Acknowledge the message after the block.
What leaves the block: StaleToken if the attempt is not this consumer's, or not any more; ApiError if the server could
not be told, and then the message should be delivered again; and what is no Exception, such as the end of the consumer
itself, after the attempt was given back.

Without a client, for all other jobs: `run = receive.kafka(record)`.

Messages are read by their attributes, whatever library they are from: aiokafka, confluent-kafka; aio-pika, pika (as the
pair of properties and body); redis-py; nats-py; boto3, and the records of an SQS event in AWS Lambda.
"""

import asyncio
import base64
import logging
import socket
import threading
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from types import TracebackType
from typing import Any, TypeAlias, overload
from urllib.parse import unquote

import msgspec

from evertick.client import ApiError, AsyncClient, Client, Invalid
from evertick.contract.workers import OutcomeReport, Recorded
from evertick.domain.attempt import SUCCEEDED
from evertick.domain.ids import Prefix, format_id, parse_run_id, parse_token
from evertick.domain.states import Outcome
from evertick.executor.executor import unique_name
from evertick.executor.handlers.run import DoNotRetry, RetryLater, failed, succeeded
from evertick.sdk.webhooks import ReceivedRun, StaleToken, Unreadable

__all__ = [
    "AsyncReporting",
    "DoNotRetry",
    "MessageRun",
    "Receiver",
    "Reporting",
    "RetryLater",
    "StaleToken",
    "Unreadable",
    "kafka",
    "nats",
    "rabbitmq",
    "redis",
    "sqs",
]

HEARTBEAT_SECONDS = 10.0
LONGEST_WAIT = timedelta(days=1)
STOPPED = "its consumer stopped"
_PREFIXES = ("ce_", "ce-", "cloudevents_", "cloudevents:")
_PACKED = "cloudevents"
logger = logging.getLogger("evertick.consumer")

Headers: TypeAlias = Mapping[Any, Any] | Iterable[tuple[Any, Any]] | None
Read: TypeAlias = Callable[[Any], tuple[Mapping[str, str], bytes]]
"""The attributes of a message, by their names in CloudEvents, and its body."""


@dataclass(frozen=True, slots=True)
class MessageRun(ReceivedRun):
    """One attempt of a run, as its message arrived. `token` is what its outcome is reported with."""

    token: str
    traceparent: str | None


class _Report:
    """What both kinds of reporting share: what they say, and what the answers mean."""

    def __init__(self, run: MessageRun, worker_id: str | None, heartbeat_seconds: float) -> None:
        self.run = run
        self.worker_id = worker_id or _process_name()
        self.heartbeat_seconds = heartbeat_seconds
        self.output: Any = None
        """What the run came to, if anything: kept up to 64 KB of JSON; of what cannot be kept, the beginning."""
        self.is_cancelled = False
        """Whether the attempt is known not to be this consumer's any more: cancelled, timed out, or another's."""
        self._started_at = datetime.now(UTC)

    def _heard(self, cancel: Iterable[str]) -> bool:
        self.is_cancelled = self.is_cancelled or self.run.token in cancel
        return self.is_cancelled

    def _outcome(self, error: BaseException | None) -> OutcomeReport:
        result, text, retryable, wait = Outcome.SUCCESS, None, None, None
        if isinstance(error, Exception):
            failure = failed(error)
            result, text, retryable, wait = failure.result, failure.error, failure.retryable, failure.wait
        elif error is not None:
            result, text = Outcome.DEFERRED, STOPPED
        is_given = error is None and self.output is not None
        done = succeeded(self.output, self.run.job_name) if is_given else SUCCEEDED
        return OutcomeReport(
            token=self.run.token,
            result=result.value,
            started_at=self._started_at,
            finished_at=datetime.now(UTC),
            error=text,
            retryable=retryable,
            retry_after_seconds=None if wait is None else min(max(wait, timedelta(0)), LONGEST_WAIT).total_seconds(),
            output=None if done.output is None else msgspec.Raw(done.output.encode()),
            excerpt=done.excerpt,
        )

    def _without_output(self, report: OutcomeReport, error: Invalid) -> OutcomeReport:
        """A success whose output the server refuses is one without: what was done is not done again."""
        if report.output is None and report.excerpt is None:
            raise error
        logger.warning("what %s came to is not kept: %s", self.run.run_id, error)
        return msgspec.structs.replace(report, output=None, excerpt=None)

    def _log(self, error: Exception) -> None:
        trace = None if isinstance(error, DoNotRetry | RetryLater) else error
        name, attempt = self.run.job_name, self.run.attempt
        logger.warning("%s failed in attempt %d: %s: %s", name, attempt, type(error).__name__, error, exc_info=trace)

    def _stale(self) -> StaleToken:
        run = self.run
        return StaleToken(f"attempt {run.attempt} of {run.run_id} is not this consumer's, or not any more")


class Reporting(_Report):
    """The block in which plain code handles a message. A thread sends the heartbeats; look at `is_cancelled` if it is
    long.
    """

    def __init__(
        self,
        run: MessageRun,
        client: Client,
        worker_id: str | None = None,
        heartbeat_seconds: float = HEARTBEAT_SECONDS,
    ) -> None:
        super().__init__(run, worker_id, heartbeat_seconds)
        self._client = client
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._beat_on, name="evertick-consumer", daemon=True)

    def __enter__(self) -> MessageRun:
        if self._beat():
            raise self._stale()
        self._thread.start()
        return self.run

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        self._is_over.set()
        self._thread.join()
        if error is not None and not isinstance(error, Exception):
            with suppress(ApiError):
                self._client.workers.record(self.worker_id, [self._outcome(error)])
            return False
        if isinstance(error, Exception):
            self._log(error)
        if self._record(self._outcome(error)).stale:
            raise self._stale() from error
        return True

    def _record(self, report: OutcomeReport) -> Recorded:
        try:
            return self._client.workers.record(self.worker_id, [report])
        except Invalid as error:
            plain = self._without_output(report, error)
            return self._client.workers.record(self.worker_id, [plain])

    def _beat(self) -> bool:
        """Whether it is to stop."""
        return self._heard(self._client.workers.heartbeat(self.worker_id, [self.run.token]).cancel)

    def _beat_on(self) -> None:
        while not self._is_over.wait(self.heartbeat_seconds):
            try:
                if self._beat():
                    return
            except ApiError as error:
                logger.warning("a heartbeat for %s failed: %s", self.run.run_id, error)


class AsyncReporting(_Report):
    """The block in which async code handles a message. It is cancelled if the attempt is its own no longer."""

    def __init__(
        self,
        run: MessageRun,
        client: AsyncClient,
        worker_id: str | None = None,
        heartbeat_seconds: float = HEARTBEAT_SECONDS,
    ) -> None:
        super().__init__(run, worker_id, heartbeat_seconds)
        self._client = client
        self._block: asyncio.Task[Any] | None = None
        self._beating: asyncio.Task[None] | None = None

    async def __aenter__(self) -> MessageRun:
        if await self._beat():
            raise self._stale()
        self._block = asyncio.current_task()
        self._beating = asyncio.create_task(self._beat_on())
        return self.run

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        assert self._block is not None
        assert self._beating is not None
        self._beating.cancel()
        await asyncio.wait([self._beating])
        if self.is_cancelled and self._block.uncancel() == 0 and isinstance(error, asyncio.CancelledError):
            raise self._stale() from None
        if error is not None and not isinstance(error, Exception):
            with suppress(ApiError):
                await self._client.workers.record(self.worker_id, [self._outcome(error)])
            return False
        if isinstance(error, Exception):
            self._log(error)
        if (await self._record(self._outcome(error))).stale:
            raise self._stale() from error
        return True

    async def _record(self, report: OutcomeReport) -> Recorded:
        try:
            return await self._client.workers.record(self.worker_id, [report])
        except Invalid as error:
            plain = self._without_output(report, error)
            return await self._client.workers.record(self.worker_id, [plain])

    async def _beat(self) -> bool:
        return self._heard((await self._client.workers.heartbeat(self.worker_id, [self.run.token])).cancel)

    async def _beat_on(self) -> None:
        assert self._block is not None
        while True:
            await asyncio.sleep(self.heartbeat_seconds)
            try:
                is_stopped = await self._beat()
            except ApiError as error:
                logger.warning("a heartbeat for %s failed: %s", self.run.run_id, error)
                continue
            if is_stopped:
                self._block.cancel()
                return


class Receiver:
    """Reads the messages of one kind of broker. Unreadable: it is no message of Evertick's."""

    def __init__(self, read: Read) -> None:
        self._read = read

    @overload
    def __call__(self, message: Any) -> MessageRun: ...
    @overload
    def __call__(
        self,
        message: Any,
        client: Client,
        *,
        worker_id: str | None = None,
        heartbeat_seconds: float = HEARTBEAT_SECONDS,
    ) -> Reporting: ...
    @overload
    def __call__(
        self,
        message: Any,
        client: AsyncClient,
        *,
        worker_id: str | None = None,
        heartbeat_seconds: float = HEARTBEAT_SECONDS,
    ) -> AsyncReporting: ...
    def __call__(
        self,
        message: Any,
        client: Client | AsyncClient | None = None,
        *,
        worker_id: str | None = None,
        heartbeat_seconds: float = HEARTBEAT_SECONDS,
    ) -> MessageRun | Reporting | AsyncReporting:
        """The run of a message; with a client, the block that handles it and reports its outcome."""
        run = _run_of(*self._read(message))
        match client:
            case None:
                return run
            case Client():
                return Reporting(run, client, worker_id, heartbeat_seconds)
            case AsyncClient():
                return AsyncReporting(run, client, worker_id, heartbeat_seconds)

    def handle(self, message: Any, client: Client, handler: Callable[[MessageRun], Any], **options: Any) -> bool:
        """Call a handler with the run, and report what it returns or raises. False: it was not this consumer's.

        Acknowledge the message in both cases. The options are those of a call.
        """
        reporting = self(message, client, **options)
        try:
            with reporting as run:
                reporting.output = handler(run)
        except StaleToken:
            return False
        return True

    async def handle_async(
        self, message: Any, client: AsyncClient, handler: Callable[[MessageRun], Awaitable[Any]], **options: Any
    ) -> bool:
        """`handle` for async code."""
        reporting = self(message, client, **options)
        try:
            async with reporting as run:
                reporting.output = await handler(run)
        except StaleToken:
            return False
        return True


@cache
def _process_name() -> str:
    return unique_name(socket.gethostname())


def _run_of(attributes: Mapping[str, str], body: bytes) -> MessageRun:
    try:
        parse_token(attributes["token"])
        return MessageRun(
            run_id=attributes["id"],
            job_id=format_id(Prefix.JOB, parse_run_id(attributes["id"]).job_id),
            job_name=attributes["subject"],
            scheduled_at=datetime.fromisoformat(attributes["time"]),
            attempt=int(attributes["attempt"]),
            reason=attributes["reason"],
            idempotency_key=attributes["idempotencykey"],
            fencing_token=int(attributes["fencingtoken"]),
            payload=msgspec.json.decode(body) if body else None,
            token=attributes["token"],
            traceparent=attributes.get("traceparent"),
        )
    except KeyError as missing:
        raise Unreadable(f"it has no attribute {missing.args[0]!r} of CloudEvents") from None
    except ValueError as error:  # msgspec's and InvalidInput are among them
        raise Unreadable(f"it cannot be read: {error}") from error


def _attributes(headers: Headers, decode: Callable[[str], str] = str) -> dict[str, str]:
    """Those of some headers that are attributes of CloudEvents, without what their broker puts before them."""
    return {
        name[len(prefix) :]: decode(_text(value))
        for name, value in ((_text(name).lower(), value) for name, value in _pairs(headers))
        for prefix in _PREFIXES
        if name.startswith(prefix) and value is not None
    }


def _pairs(headers: Headers) -> Iterator[tuple[Any, Any]]:
    yield from () if headers is None else headers.items() if isinstance(headers, Mapping) else headers


def _text(value: Any) -> str:
    return bytes(value).decode(errors="replace") if isinstance(value, bytes | bytearray | memoryview) else str(value)


def _bytes(value: Any) -> bytes:
    return b"" if value is None else value.encode() if isinstance(value, str) else bytes(value)


def _kafka(message: Any) -> tuple[dict[str, str], bytes]:
    headers, value = message.headers, message.value
    if callable(headers):  # confluent-kafka has methods
        headers, value = headers(), value()
    return _attributes(headers), _bytes(value)


def _rabbitmq(message: Any) -> tuple[dict[str, str], bytes]:
    if isinstance(message, tuple):  # pika gives them apart
        properties, body = message
        return _attributes(properties.headers), _bytes(body)
    return _attributes(message.headers), _bytes(message.body)


def _redis(entry: Any) -> tuple[dict[str, str], bytes]:
    fields = entry if isinstance(entry, Mapping) else entry[1]
    body = fields.get(b"data", fields.get("data"))
    return _attributes(fields), _bytes(body)


def _nats(message: Any) -> tuple[dict[str, str], bytes]:
    return _attributes(message.headers, unquote), _bytes(message.data)


def _sqs(message: Mapping[str, Any]) -> tuple[dict[str, str], bytes]:
    given = message.get("MessageAttributes", message.get("messageAttributes")) or {}
    texts = {name: _string(value) for name, value in given.items()}
    if not texts:
        raise Unreadable("it has no attributes: SQS returns them to who asks with MessageAttributeNames=['All']")
    attributes = _attributes(texts)
    try:
        attributes |= msgspec.json.decode(texts.get(_PACKED, "{}"), type=dict[str, str])
    except msgspec.DecodeError as error:
        raise Unreadable(f"its attribute {_PACKED!r} cannot be read: {error}") from error
    return attributes, _sqs_body(str(message.get("Body", message.get("body", ""))), texts.get("encoding"))


def _string(value: Mapping[str, Any]) -> str:
    return str(value.get("StringValue", value.get("stringValue", "")))


def _sqs_body(body: str, encoding: str | None) -> bytes:
    if encoding == "empty":
        return b""
    return base64.b64decode(body) if encoding == "base64" else body.encode()


kafka = Receiver(_kafka)
rabbitmq = Receiver(_rabbitmq)
redis = Receiver(_redis)
nats = Receiver(_nats)
sqs = Receiver(_sqs)
