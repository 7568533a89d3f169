"""Problems: every error that the API answers with, as RFC 9457 has it, and what each exception becomes."""

import logging
from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Any

import msgspec

from evertick.domain.admission import Refused, Throttled
from evertick.domain.errors import EvertickError, Fault, InvalidFields, InvalidInput
from evertick.domain.limits import QuotaName
from evertick.runtime.background import TooBusy
from evertick.runtime.concurrency import LimitReached
from evertick.store.database import is_transient, reason_of, was_conflict, was_too_slow
from evertick.store.errors import ArchiveUnavailable
from evertick.usecases.errors import (
    ConnectionInUse,
    KeyEnded,
    NameTaken,
    NoArchive,
    NothingToSmear,
    QuotaReached,
    ReplayFinished,
    ResourceNotFound,
    RunFinished,
    RunUnfinished,
    SmearFinished,
    TooManyReplays,
    TooManySmears,
    TriggerRefused,
    VersionConflict,
    refusal_text,
)

logger = logging.getLogger("evertick.api")

MEDIA_TYPE = "application/problem+json"
_REFUSED_SECONDS = 60
"""Waiting alone does not help against these quotas: a guess at when somebody may have made room."""
_UNAVAILABLE_SECONDS = 2
_BUSY_SECONDS = 1
"""The background thread does about a hundred ordinary computations of one tenant in that time."""


class Kind(Enum):
    """The kinds of problem: the status, the last part of the type, the title."""

    MALFORMED = 400, "malformed", "The request cannot be read"
    UNAUTHENTICATED = 401, "unauthenticated", "A valid API key is needed"
    FORBIDDEN = 403, "forbidden", "The key's role does not allow this"
    NOT_FOUND = 404, "not-found", "There is no such thing"
    NOT_ALLOWED = 405, "method-not-allowed", "The method is not allowed here"
    TOO_SLOW = 408, "too-slow", "The request did not arrive in time"
    NAME_TAKEN = 409, "name-taken", "The name is taken"
    IN_FLIGHT = 409, "in-flight", "A request with this idempotency key is in flight"
    WRONG_STATE = 409, "wrong-state", "Its state does not allow this"
    VERSION_CONFLICT = 412, "version-conflict", "It was changed meanwhile"
    TOO_LARGE = 413, "too-large", "The body is too large"
    URL_TOO_LONG = 414, "url-too-long", "The URL is too long"
    UNSUPPORTED = 415, "unsupported-media-type", "The body is of an unsupported media type"
    INVALID = 422, "invalid-input", "The input cannot be used"
    KEY_REUSED = 422, "idempotency-key-reused", "The idempotency key belongs to another request"
    OVER_QUOTA = 429, "over-quota", "Over a quota"
    HEAD_TOO_LARGE = 431, "head-too-large", "The request's head is too large"
    INTERNAL = 500, "internal", "Something went wrong here"
    UNAVAILABLE = 503, "unavailable", "It cannot be answered now"

    def __init__(self, status: int, slug: str, title: str) -> None:
        self.status = status
        self.slug = slug
        self.title = title

    @property
    def type(self) -> str:
        return f"urn:evertick:problem:{self.slug}"


class HttpProblem(Exception):  # noqa: N818 - the word of RFC 9457
    """An answer that says what is wrong. `more` are further members of it."""

    def __init__(
        self,
        kind: Kind,
        detail: str,
        faults: Iterable[Fault] = (),
        *,
        headers: Mapping[str, str] | None = None,
        more: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(detail)
        self.kind = kind
        self.detail = detail
        self.faults = tuple(faults)
        self.headers = dict(headers or {})
        self.more = dict(more or {})

    def body(self, instance: str, request_id: str) -> bytes:
        members: dict[str, Any] = {
            "type": self.kind.type,
            "title": self.kind.title,
            "status": self.kind.status,
            "detail": self.detail,
            "instance": instance,
            "request_id": request_id,
            **self.more,
        }
        if self.faults:
            members["errors"] = [{"pointer": pointer, "detail": reason} for pointer, reason in self.faults]
        return msgspec.json.encode(members)


class ClientDisconnected(Exception):  # noqa: N818 - says what happened
    """The client disconnected before its request was answered."""


def unauthenticated(detail: str) -> HttpProblem:
    return HttpProblem(Kind.UNAUTHENTICATED, detail, headers={"WWW-Authenticate": 'Bearer realm="evertick"'})


def key_ended() -> HttpProblem:
    return unauthenticated("the key is unknown, has expired or was revoked")


def over_quota(verdict: Throttled | Refused) -> HttpProblem:
    """Names the quota that was reached, and when to try again."""
    return over_limit(verdict.quota, refusal_text(verdict), retry_seconds(verdict))


def retry_seconds(verdict: Throttled | Refused) -> int:
    return max(1, verdict.retry_after_seconds) if isinstance(verdict, Throttled) else _REFUSED_SECONDS


def over_limit(quota: QuotaName, detail: str, retry_seconds: int) -> HttpProblem:
    return HttpProblem(Kind.OVER_QUOTA, detail, headers={"Retry-After": str(retry_seconds)}, more={"quota": str(quota)})


def unavailable(detail: str) -> HttpProblem:
    return HttpProblem(Kind.UNAVAILABLE, detail, headers={"Retry-After": str(_UNAVAILABLE_SECONDS)})


def problem_of(error: Exception, request_id: str) -> HttpProblem:  # noqa: C901, PLR0911, PLR0912 - one for each kind
    """What an exception becomes. An unexpected one is logged here, and not shown to the client."""
    match error:
        case HttpProblem():
            return error
        case ClientDisconnected():
            logger.debug("request %s: the client hung up before the answer", request_id)
            return HttpProblem(Kind.MALFORMED, "the client hung up before the answer")
        case ResourceNotFound():
            return HttpProblem(Kind.NOT_FOUND, str(error))
        case QuotaReached():
            return over_quota(error.verdict)
        case NameTaken():
            return HttpProblem(Kind.NAME_TAKEN, str(error), [Fault("/name", error.reason)])
        case VersionConflict():
            return HttpProblem(Kind.VERSION_CONFLICT, str(error), headers={"ETag": f'"{error.current}"'})
        case TriggerRefused():
            return HttpProblem(Kind.WRONG_STATE, str(error), more={"run_id": error.run_id})
        case (
            RunFinished()
            | RunUnfinished()
            | ReplayFinished()
            | TooManyReplays()
            | SmearFinished()
            | TooManySmears()
            | NothingToSmear()
            | KeyEnded()
        ):
            return HttpProblem(Kind.WRONG_STATE, str(error))
        case ConnectionInUse() | NoArchive():
            return HttpProblem(Kind.WRONG_STATE, str(error))
        case ArchiveUnavailable():
            logger.warning("request %s: %s", request_id, error)
            return unavailable("the archive cannot be read now: try again later, or read without it")
        case TooBusy():
            return over_limit(QuotaName.COMPUTATIONS, str(error), _BUSY_SECONDS)
        case LimitReached():
            detail = "too many requests of this tenant are under way: send fewer at once"
            return over_limit(QuotaName.REQUESTS, detail, _BUSY_SECONDS)
        case InvalidFields():
            return HttpProblem(Kind.INVALID, _summary(error.faults), error.faults)
        case InvalidInput():
            fault = Fault(f"/{error.field}", error.reason)
            return HttpProblem(Kind.INVALID, _summary([fault]), [fault])
    if is_transient(error) or was_conflict(error) or was_too_slow(error):
        logger.warning("request %s: the database is unavailable: %s", request_id, reason_of(error))
        return unavailable("try again in a moment")
    logger.error("request %s failed", request_id, exc_info=error, stack_info=isinstance(error, EvertickError))
    return HttpProblem(Kind.INTERNAL, "the request id finds it in the log")


def _summary(faults: Iterable[Fault]) -> str:
    """The first fault; the others are in `errors`."""
    first, *others = faults
    where = f"{first.pointer} " if first.pointer else "the document "
    more = f", and {len(others)} more" if others else ""
    return f"{where}{first.reason}{more}"
