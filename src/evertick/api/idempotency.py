"""Requests that come again: the Idempotency-Key of a POST, and the answer that is kept under it.

An answer with a secret is sealed with the caller's own API key, of which the database has only the digest. So whoever
reads the database cannot read it, and whoever asks again needs the same API key.
"""

from collections.abc import Awaitable, Callable
from typing import TypeAlias

from evertick.api.documents import REPEATED
from evertick.api.operations import Call, Operation
from evertick.api.problems import Kind, Problem
from evertick.api.responses import Answer
from evertick.store.sealing import ANSWERS, Seal
from evertick.usecases import idempotency
from evertick.usecases.context import Tenant
from evertick.usecases.idempotency import KEY_MAX_LENGTH, Asked, InFlight, OtherRequest
from evertick.usecases.keys import Caller
from evertick.usecases.unit_of_work import single_connection

Act: TypeAlias = Callable[[Tenant], Awaitable[Answer]]
Try: TypeAlias = Callable[[Tenant], Awaitable[Answer | None]]


def asked_of(operation: Operation, key: str | None, digest: bytes, caller: Caller, secret: str) -> Asked | None:
    """By what a request is known when it comes again. None: it says nothing about that."""
    if key is None or not operation.is_repeatable:
        return None
    if not 1 <= len(key) <= KEY_MAX_LENGTH or not key.isprintable() or not key.isascii():
        raise Problem(Kind.INVALID, f"Idempotency-Key has 1 to {KEY_MAX_LENGTH} visible ASCII characters")
    if operation.holds_secret:
        return Asked(key, digest + caller.key_id.encode(), Seal(secret, ANSWERS))
    return Asked(key, digest)


async def earlier(call: Call, asked: Asked) -> Answer | None:
    """The answer that was given already, if one was."""
    return again(await call.services.answers.ask(call.tenant, asked))


async def once(tenant: Tenant, asked: Asked, act: Act) -> Answer:
    """Act, unless the request was answered before."""
    answered = await _once(tenant, asked, act)
    if answered is None:
        raise in_flight()
    return answered


async def one_try(call: Call, attempt: Try) -> Answer | None:
    """One try of a poll. None: there is no answer yet, or another request with the same key is at it right now."""
    if call.asked is None:
        # On one connection: between its statements it waits for no other.
        async with single_connection(call.tenant) as tenant:
            return await attempt(tenant)
    return await _once(call.tenant, call.asked, attempt)


def in_flight() -> Problem:
    return Problem(Kind.IN_FLIGHT, "wait for the first request's answer", headers={"Retry-After": "1"})


async def _once(tenant: Tenant, asked: Asked, attempt: Try) -> Answer | None:
    made: list[Answer] = []

    async def act(inside: Tenant) -> idempotency.Answer | None:
        answered = await attempt(inside)
        if answered is None:
            return None
        made.append(answered)
        return kept(answered)

    verdict = await idempotency.answer_once(tenant, asked, act)
    return made[0] if made else again(verdict)


def kept(answered: Answer) -> idempotency.Answer:
    """An answer as it is kept for who asks again."""
    headers = {**answered.headers, "Content-Type": answered.media_type}
    return idempotency.Answer(answered.status, headers, answered.body)


def again(verdict: idempotency.Verdict | None) -> Answer | None:
    """An answer that was kept; None: there is none yet."""
    match verdict:
        case None | InFlight():
            return None
        case OtherRequest():
            raise Problem(Kind.KEY_REUSED, "use a new key for a new request")
        case idempotency.Answer(status, headers, body):
            told = {**headers, REPEATED: "true"}
            return Answer(status, body, told, media_type=told.pop("Content-Type"))
