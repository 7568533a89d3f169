"""For receivers of Evertick's webhooks, in any framework: verifies a delivery and reads its run.

    receiver = Receiver(["whsec_…"])
    try:
        run = receiver.verify(request.headers, body)
    except ReceiverError as error:
        return Response(status=error.status)
    send_report(run.payload)
    receiver.done(run)

ReceiverError
├── InvalidSignature   not from Evertick, or changed on the way
├── StaleTimestamp     signed too long ago, or in the future: perhaps a replay
├── Unreadable         without the headers of a run
├── AlreadyHandled     its idempotency key is done: nothing is left to do
└── StaleToken         this attempt or a later one was received before
"""

import re
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal, Protocol, TypeAlias
from urllib.parse import unquote

import msgspec

from evertick.domain.errors import EvertickError, InvalidInput
from evertick.domain.ids import MAX_ID, Prefix, format_id, parse_run_id
from evertick.targets.http.signing import RUN_HEADERS, RUN_SIGNATURE, Secret, is_signed, is_signed_message, run_message

__all__ = [
    "AlreadyHandled",
    "InvalidSignature",
    "Memory",
    "ReceivedRun",
    "Receiver",
    "ReceiverError",
    "RecentMemory",
    "StaleTimestamp",
    "StaleToken",
    "Unreadable",
]

TOLERANCE = timedelta(minutes=5)

_TIMESTAMP = re.compile("[1-9][0-9]{0,11}")
_TOKEN = re.compile("[1-9][0-9]{0,18}")

Headers: TypeAlias = Mapping[str, str] | Iterable[tuple[str | bytes, str | bytes]]
"""A mapping, or pairs as in ASGI. Names are case-insensitive."""


class ReceiverError(EvertickError):
    """A delivery that must not be handled. `status` is the response by which Evertick knows whether to try again."""

    status = 400


class InvalidSignature(ReceiverError):  # noqa: N818 - this and those below say what is wrong
    """No secret of the receiver signed this. It is not tried again."""

    status = 401


class StaleTimestamp(ReceiverError):  # noqa: N818
    """Signed outside of the tolerance. Evertick tries again, with a new timestamp."""

    status = 408


class Unreadable(ReceiverError):  # noqa: N818
    """The headers of a run are missing or wrong: a proxy may have removed them. It is not tried again."""


class AlreadyHandled(ReceiverError):  # noqa: N818
    """The work is done. The response ends the run."""

    status = 200


class StaleToken(ReceiverError):  # noqa: N818
    """This attempt or a later one was received before. If it still counts, Evertick tries again with a larger token."""

    status = 409


@dataclass(frozen=True, slots=True)
class ReceivedRun:
    """One attempt of a run, as it arrived."""

    run_id: str
    job_id: str
    job_name: str
    scheduled_at: datetime
    attempt: int
    reason: str
    idempotency_key: str
    fencing_token: int
    payload: Any


class Memory(Protocol):
    """A receiver's memory. Several processes that receive for one job must share one, such as a table or Redis."""

    def is_done(self, idempotency_key: str) -> bool: ...

    def set_done(self, idempotency_key: str) -> None: ...

    def advance(self, subject: str, token: int) -> bool:
        """Whether the token is larger than all earlier ones of `subject`. If so, store it, atomically."""


class RecentMemory:
    """A memory inside this process, of the latest keys and subjects; safe to use from several threads."""

    def __init__(self, most: int = 100_000) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._done: OrderedDict[str, None] = OrderedDict()
        self._tokens: OrderedDict[str, int] = OrderedDict()

    def is_done(self, idempotency_key: str) -> bool:
        return idempotency_key in self._done

    def set_done(self, idempotency_key: str) -> None:
        with self._lock:
            self._done[idempotency_key] = None
            if len(self._done) > self._most:
                self._done.popitem(last=False)

    def advance(self, subject: str, token: int) -> bool:
        with self._lock:
            if token <= self._tokens.get(subject, -1):
                return False
            self._tokens[subject] = token
            self._tokens.move_to_end(subject)
            if len(self._tokens) > self._most:
                self._tokens.popitem(last=False)
        return True


class Receiver:
    """Checks deliveries. Several secrets may be valid at once, as they are during a rotation.

    `fence` decides which later attempt makes an earlier one stale: any of the same job, or only one of the same run.
    Jobs whose runs may overlap need `run`.
    """

    def __init__(
        self,
        secrets: Iterable[str],
        *,
        tolerance: timedelta = TOLERANCE,
        memory: Memory | None = None,
        fence: Literal["job", "run"] = "job",
        now: Callable[[], float] = time.time,
    ) -> None:
        self._secrets = tuple(map(Secret.parse, secrets))
        if not self._secrets:
            raise InvalidInput("secrets", "must not be empty")
        self._tolerance = tolerance.total_seconds()
        self._memory = RecentMemory() if memory is None else memory
        self._fence = fence
        self._now = now

    def verify(self, headers: Headers, body: bytes) -> ReceivedRun:
        """Check signatures, time, idempotency key and fencing token, in this order. Call `done` after acting on it.

        An attempt passes once, done or not: the same one sent again is refused.
        """
        given = _by_lower_name(headers)
        self._check_signature(given, body)
        self._check_run_headers(given)
        run = _read(given, body)
        if self._memory.is_done(run.idempotency_key):
            raise AlreadyHandled(f"{run.idempotency_key} is done")
        subject = run.job_id if self._fence == "job" else run.run_id
        if not self._memory.advance(subject, run.fencing_token):
            raise StaleToken(f"{run.fencing_token} or a later attempt was here before")
        return run

    def done(self, run: ReceivedRun) -> None:
        """Remember that the work is done, so that no further attempt repeats it."""
        self._memory.set_done(run.idempotency_key)

    def _check_signature(self, given: Mapping[str, str], body: bytes) -> None:
        message_id, sent_at = given.get("webhook-id", ""), given.get("webhook-timestamp", "")
        # The signature covers the number: other spellings of it, such as leading zeros, are refused.
        if not _TIMESTAMP.fullmatch(sent_at):
            raise InvalidSignature("there is no readable webhook-timestamp")
        header = given.get("webhook-signature", "")
        if not message_id or not is_signed(self._secrets, message_id, int(sent_at), body, header=header):
            raise InvalidSignature("no signature is from a known secret")
        if abs(self._now() - int(sent_at)) > self._tolerance:
            raise StaleTimestamp("signed too long ago, or in the future")

    def _check_run_headers(self, given: Mapping[str, str]) -> None:
        for name in (*RUN_HEADERS, RUN_SIGNATURE):
            if name.lower() not in given:
                raise Unreadable(f"it has no header {name}")
        run = {name: given[name.lower()] for name in RUN_HEADERS}
        message = run_message(given["webhook-signature"], run)
        if not is_signed_message(self._secrets, message, header=given[RUN_SIGNATURE.lower()]):
            raise InvalidSignature("the headers of the run were changed")


def _read(given: Mapping[str, str], body: bytes) -> ReceivedRun:
    try:
        if given.get("idempotency-key") != given["webhook-id"]:
            raise Unreadable("its Idempotency-Key is not the one that was signed")
        return ReceivedRun(
            run_id=given["evertick-run-id"],
            job_id=format_id(Prefix.JOB, parse_run_id(given["evertick-run-id"]).job_id),
            job_name=unquote(given["evertick-job-name"]),
            scheduled_at=datetime.fromisoformat(given["evertick-scheduled-at"]),
            attempt=int(given["evertick-attempt"]),
            reason=given["evertick-reason"],
            idempotency_key=given["webhook-id"],
            fencing_token=_token(given["evertick-fencing-token"]),
            payload=msgspec.json.decode(body) if body else None,
        )
    except ValueError as error:  # msgspec's and InvalidInput are among them
        raise Unreadable(f"it cannot be read: {error}") from error


def _token(text: str) -> int:
    if not _TOKEN.fullmatch(text) or int(text) > MAX_ID:
        raise InvalidInput("fencing token", f"must be a whole number from 1 to {MAX_ID}")
    return int(text)


def _by_lower_name(headers: Headers) -> dict[str, str]:
    pairs = headers.items() if isinstance(headers, Mapping) else headers
    return {_text(name).lower(): _text(value) for name, value in pairs}


def _text(value: str | bytes) -> str:
    return value if isinstance(value, str) else value.decode("latin-1")
