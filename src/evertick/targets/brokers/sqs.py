"""Publishes to Amazon SQS. A message is stored when its entry is among the successful ones of a SendMessageBatch.

Messages for a queue that arrive while as many batches are under way as may be form the next batches, of up to ten. A
FIFO queue has one batch under way, which keeps its order.

Requests are JSON over the aiohttp that webhooks need anyway, signed here (Signature Version 4): botocore has no
asyncio, and aiobotocore pins it to a range of versions. They go to the endpoint of the connection, never to the host in
the URL of a queue. Credentials are those of the connection. The role of the machine is not used: a tenant could name
any queue that it reaches.

SQS takes at most ten attributes, so they are packed:

| attribute | value |
|---|---|
| `content-type` | the type of the body |
| `cloudevents` | all attributes of CloudEvents, a JSON object |
| `headers` | the job's own headers, a JSON object; if it has any |
| `traceparent` | the trace of the run, which OpenTelemetry looks for by this name |
| `encoding` | `base64` if the body is no text that SQS takes, `empty` if it is empty; otherwise not set |
"""

import asyncio
import base64
import hashlib
import hmac
import json
import re
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from io import BytesIO
from socket import AF_INET, AF_INET6, AddressFamily
from typing import Any

import aiohttp
import msgspec
from aiohttp.abc import AbstractResolver, ResolveResult
from yarl import URL

from evertick.contract.connections import SqsConnection
from evertick.domain.errors import EvertickError
from evertick.targets.brokers.publisher import Dial, Publisher, PublishFailed, Sending, fail_all, made_of
from evertick.targets.brokers.stream import CONNECT_SECONDS, SILENCE_SECONDS, broker_down, reason_of

MAX_ENTRIES = 10
MAX_BATCH_BYTES = 262_144
MAX_MESSAGE_BYTES = 1_048_576
MAX_UNDER_WAY = 32
"""Batches of one standard queue."""
MAX_RESPONSE = 1_048_576

_NOT_TEXT = re.compile("[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_MISSING = {"QueueDoesNotExist", "NonExistentQueue", "InvalidAddress"}
_CREDENTIALS = {
    "ExpiredToken",
    "IncompleteSignature",
    "InvalidAccessKeyId",
    "InvalidClientTokenId",
    "InvalidSecurity",
    "MissingAuthenticationToken",
    "SignatureDoesNotMatch",
    "UnrecognizedClientException",
}
_FORBIDDEN = {"AccessDenied", "AccessDeniedException", "KmsAccessDenied"}
_SLOW_DOWN = {"OverLimit", "RequestThrottled", "ThrottlingException", "KmsThrottled"}


_XML_CODE, _XML_MESSAGE = re.compile(rb"<Code>(\w+)</Code>"), re.compile(rb"<Message>([^<]*)</Message>")
"""Some servers answer a wrong signature so."""


class NotPermitted(PublishFailed):
    """The key is good, and may not do this."""


class RequestRefused(PublishFailed):
    """Something in the request is wrong. Of a batch that may be one of its messages."""


@dataclass(slots=True, eq=False)
class Entry:
    fields: dict[str, Any]
    size: int
    sending: Sending


@dataclass(slots=True, eq=False)
class Queue:
    url: str
    waiting: deque[Entry] = field(default_factory=deque)
    sending: set[asyncio.Task[None]] = field(default_factory=set)

    @property
    def is_full(self) -> bool:
        return len(self.sending) >= (1 if self.url.endswith(".fifo") else MAX_UNDER_WAY)


def open_publisher(settings: Mapping[str, Any], secrets: Mapping[str, str], dial: Dial) -> Publisher:
    return SqsPublisher(msgspec.convert(settings, SqsConnection), secrets, dial)


class SqsPublisher(Publisher):
    """A client of one endpoint with one key."""

    def __init__(self, settings: SqsConnection, secrets: Mapping[str, str], dial: Dial) -> None:
        self._endpoint = Endpoint(settings, secrets, dial)
        self._queues: dict[str, Queue] = {}

    async def send(self, batch: Sequence[Sending]) -> None:
        for sending in batch:
            url = str(sending.message.address["queue_url"])
            queue = self._queues.get(url)
            if queue is None:
                queue = self._queues[url] = Queue(url)
            entry = made_of(sending, _entry)
            if entry is None:
                continue
            queue.waiting.append(entry)
            # A task takes its batch when it starts: one for each ten that wait.
            if not queue.is_full and len(queue.waiting) % MAX_ENTRIES == 1:
                task = asyncio.create_task(self._send_all(queue))
                queue.sending.add(task)
                task.add_done_callback(queue.sending.discard)

    async def check(self) -> str:
        try:
            found = await self._endpoint.call("ListQueues", {"MaxResults": 1})
        except NotPermitted:
            return f"SQS at {self._endpoint.name} knows the key; it may not list queues"
        return f"SQS at {self._endpoint.name}, with {'queues' if found.get('QueueUrls') else 'no queues'}"

    async def close(self) -> None:
        sending = [task for queue in self._queues.values() for task in queue.sending]
        for task in sending:
            task.cancel()
        await asyncio.gather(*sending, return_exceptions=True)
        for queue in self._queues.values():
            _fail(queue.waiting, broker_down("the connection was closed"))
        await self._endpoint.close()

    async def _send_all(self, queue: Queue) -> None:
        batch: list[Entry] = []
        try:
            while batch := _next_batch(queue):
                try:
                    await self._send(queue, batch)
                except RequestRefused:
                    await self._send_each(queue, batch)
                except Exception as failure:  # noqa: BLE001 - its callers get it
                    _fail(batch, failure)
                _fail(batch, broker_down(f"{self._endpoint.name}: the answer does not name the message"))
        finally:
            # At once, not in a callback: what is published in between would find a queue that is full, and wait alone.
            queue.sending -= {asyncio.current_task()}
            _fail(batch, broker_down("the connection was closed"))

    async def _send_each(self, queue: Queue, batch: list[Entry]) -> None:
        """Send the messages of a batch that was refused one by one: that which is the reason fails alone."""
        for entry in batch:
            if entry.sending.is_over:
                continue  # its caller has given up
            try:
                await self._send(queue, [entry])
            except Exception as failure:  # noqa: BLE001 - its caller gets it
                _fail([entry], failure)

    async def _send(self, queue: Queue, batch: list[Entry]) -> None:
        entries = [{"Id": str(number), **entry.fields} for number, entry in enumerate(batch)]
        answer = await self._endpoint.call("SendMessageBatch", {"QueueUrl": queue.url, "Entries": entries})
        for stored in answer.get("Successful") or ():
            receipt = f"queue {queue.url.rpartition('/')[2]}, message {stored.get('MessageId', '?')}"
            batch[int(stored["Id"])].sending.stored(receipt)
        for failed in answer.get("Failed") or ():
            failure = PublishFailed(
                f"SQS refused the message: {failed.get('Code')}: {failed.get('Message', '')}",
                retryable=not failed.get("SenderFault"),
                is_broker_down=False,
            )
            _fail([batch[int(failed["Id"])]], failure)


def _next_batch(queue: Queue) -> list[Entry]:
    """The first entries that still have a caller."""
    batch: list[Entry] = []
    size = 0
    while queue.waiting and len(batch) < MAX_ENTRIES:
        if batch and size + queue.waiting[0].size > MAX_BATCH_BYTES:
            break
        entry = queue.waiting.popleft()
        if not entry.sending.is_over:
            batch.append(entry)
            size += entry.size
    return batch


def _fail(entries: Iterable[Entry], failure: Exception) -> None:
    fail_all((entry.sending for entry in entries), failure)


def _entry(sending: Sending) -> Entry:
    message = sending.message
    body, encoding = _body(message.body)
    attributes = {
        **message.plain,
        "content-type": message.envelope.content_type,
        "cloudevents": json.dumps(message.attributes),
    }
    if message.envelope.headers:
        attributes["headers"] = json.dumps(dict(message.envelope.headers))
    if encoding is not None:
        attributes["encoding"] = encoding
    fields: dict[str, Any] = {
        "MessageBody": body,
        "MessageAttributes": {name: {"DataType": "String", "StringValue": value} for name, value in attributes.items()},
    }
    if str(message.address["queue_url"]).endswith(".fifo"):
        fields["MessageGroupId"] = str(message.address.get("group_id") or "evertick")
        fields["MessageDeduplicationId"] = _short(message.message_id)
    size = len(body.encode()) + sum(len(name) + len(value) + 6 for name, value in attributes.items())
    if size > MAX_MESSAGE_BYTES:
        reason = f"the message has {size} bytes with its attributes; SQS takes at most {MAX_MESSAGE_BYTES}"
        raise PublishFailed(reason, retryable=False, is_broker_down=False)
    return Entry(fields, size, sending)


def _short(text: str) -> str:
    """An id as SQS takes it: 128 characters at most."""
    return (
        text
        if len(text) <= 128 and text.isascii() and text.isprintable()
        else hashlib.sha256(text.encode()).hexdigest()
    )


def _body(body: bytes) -> tuple[str, str | None]:
    if not body:
        return "-", "empty"
    try:
        text = body.decode()
    except UnicodeDecodeError:
        text = None
    if text is None or _NOT_TEXT.search(text):
        return base64.b64encode(body).decode(), "base64"
    return text, None


class Endpoint:
    """Calls actions of SQS, signed."""

    def __init__(self, settings: SqsConnection, secrets: Mapping[str, str], dial: Dial) -> None:
        domain = "amazonaws.com.cn" if settings.region.startswith("cn-") else "amazonaws.com"
        self._url = URL(settings.endpoint_url or f"https://sqs.{settings.region}.{domain}/").with_path("/")
        self._settings, self._secrets, self._dial = settings, secrets, dial
        self._session: aiohttp.ClientSession | None = None
        self.name = str(self._url.host)

    async def call(self, action: str, fields: Mapping[str, Any]) -> dict[str, Any]:
        body = msgspec.json.encode(fields)
        headers = signed_headers(
            self._settings, self._secrets, str(self._url.authority), action, body, datetime.now(UTC)
        )
        try:
            await self._check_address()
            async with self._open().post(
                self._url, data=BytesIO(body), headers=headers, allow_redirects=False
            ) as response:
                answer = await response.content.read(MAX_RESPONSE)
                while not response.content.at_eof() and len(answer) < MAX_RESPONSE:
                    answer += await response.content.read(MAX_RESPONSE)
                status = response.status
        except EvertickError as error:  # the guard refuses
            raise PublishFailed(f"{self.name}: {error}", retryable=False, is_broker_down=False) from error
        except aiohttp.ClientConnectorCertificateError as error:
            raise broker_down(f"{self.name}: its certificate is not valid") from error
        except aiohttp.ClientConnectorDNSError as error:
            raise broker_down(f"the addresses of {self.name} cannot be found") from error
        except aiohttp.ClientOSError as error:
            raise broker_down(f"cannot connect to {self.name}: {reason_of(error)}") from error
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise broker_down(f"{self.name}: {reason_of(error)}") from error
        return self._read(status, answer)

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def _check_address(self) -> None:
        """aiohttp asks the resolver for names alone."""
        host = self._url.raw_host or ""
        if ":" in host or not any(map(str.isalpha, host)):  # also 127.1 and 2130706433, which the guard refuses
            await self._dial(host, self._url.port or 443)

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None or self._session.closed:
            connector = aiohttp.TCPConnector(resolver=GuardedResolver(self._dial), use_dns_cache=False, limit=64)
            timeout = aiohttp.ClientTimeout(total=SILENCE_SECONDS, sock_connect=CONNECT_SECONDS)
            self._session = aiohttp.ClientSession(
                connector=connector,
                timeout=timeout,
                trust_env=False,
                cookie_jar=aiohttp.DummyCookieJar(),
                headers={"Accept-Encoding": "identity"},
                auto_decompress=False,  # a small answer may unpack to gigabytes
            )
        return self._session

    def _read(self, status: int, answer: bytes) -> dict[str, Any]:
        try:
            found = msgspec.json.decode(answer, type=dict[str, Any])
        except msgspec.DecodeError:
            code, text = _XML_CODE.search(answer), _XML_MESSAGE.search(answer)
            found = {"__type": code[1].decode(), "message": text[1].decode() if text else ""} if code else {}
        if status == 200:
            return found
        kind = str(found.get("__type", "")).rpartition("#")[2].rpartition(".")[2]
        # After a wrong signature AWS repeats what was to be signed, with the session token.
        said = str(found.get("message") or found.get("Message") or "").partition("\n")[0]
        reason = f"{self.name}: {kind or f'HTTP status {status}'}: {said}"
        if kind in _MISSING:
            raise PublishFailed(f"the queue does not exist: {reason}", retryable=True, is_broker_down=False)
        if kind in _CREDENTIALS:
            raise broker_down(f"wrong credentials: {reason}")
        if kind in _FORBIDDEN:
            raise NotPermitted(f"not permitted: {reason}", retryable=False, is_broker_down=False)
        if kind in _SLOW_DOWN or status == 429:
            raise PublishFailed(reason, retryable=True, is_broker_down=False)
        if status >= 500 or not kind:
            raise broker_down(reason)
        raise RequestRefused(reason, retryable=False, is_broker_down=False)


class GuardedResolver(AbstractResolver):
    """Resolves to what the egress guard returned; the certificate is checked against the name."""

    def __init__(self, dial: Dial) -> None:
        self._dial = dial

    async def resolve(
        self,
        host: str,
        port: int = 0,
        family: AddressFamily = AF_INET,  # noqa: ARG002 - the guard returns both families
    ) -> list[ResolveResult]:
        return [
            ResolveResult(
                hostname=host, host=address, port=port, family=AF_INET6 if ":" in address else AF_INET, proto=0, flags=0
            )
            for address in await self._dial(host, port)
        ]

    async def close(self) -> None:
        pass


def signed_headers(  # noqa: PLR0913, PLR0917 - all that is signed
    settings: SqsConnection, secrets: Mapping[str, str], host: str, action: str, body: bytes, now: datetime
) -> dict[str, str]:
    """The headers of a request, with AWS's Signature Version 4."""
    at, day = now.strftime("%Y%m%dT%H%M%SZ"), now.strftime("%Y%m%d")
    headers = {
        "content-type": "application/x-amz-json-1.0",
        "host": host,
        "x-amz-date": at,
        "x-amz-target": f"AmazonSQS.{action}",
    }
    if "session_token" in secrets:
        headers["x-amz-security-token"] = secrets["session_token"]
    names = ";".join(sorted(headers))
    lines = "".join(f"{name}:{headers[name]}\n" for name in sorted(headers))
    canonical = f"POST\n/\n\n{lines}\n{names}\n{hashlib.sha256(body).hexdigest()}"
    scope = f"{day}/{settings.region}/sqs/aws4_request"
    to_sign = f"AWS4-HMAC-SHA256\n{at}\n{scope}\n{hashlib.sha256(canonical.encode()).hexdigest()}"
    key = f"AWS4{secrets.get('secret_access_key', '')}".encode()
    for part in scope.split("/"):
        key = hmac.digest(key, part.encode(), "sha256")
    signature = hmac.digest(key, to_sign.encode(), "sha256").hex()
    headers["authorization"] = (
        f"AWS4-HMAC-SHA256 Credential={settings.access_key_id}/{scope}, SignedHeaders={names}, Signature={signature}"
    )
    return headers
