"""Submitting a one-off from a transaction of the application.

It is drafted and admitted on our own connection. The document that results is written by the function
`submit_prepared` in the database, which the application's connection calls: so the job exists if that transaction
commits. A rule, queue or lane that is missing is committed on our own connection, as for every other job.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from hashlib import blake2b
from typing import Any

import msgspec

from evertick.domain.errors import InvalidInput
from evertick.domain.ids import Prefix, format_id, format_run_id
from evertick.domain.schedule.instants import to_us
from evertick.store.jobs import references
from evertick.usecases.context import TenantContext
from evertick.usecases.idempotency import KEY_MAX_LENGTH, KeyedRequest, is_key
from evertick.usecases.jobs.create import draft_one, references_of, rows_of
from evertick.usecases.jobs.rows import as_spec
from evertick.usecases.references import References

_encoder = msgspec.json.Encoder()


class Written(StrEnum):
    """What `submit_prepared` did."""

    CREATED = "created"
    NAME_TAKEN = "name_taken"
    INCOMPLETE = "incomplete"  # nothing: a rule, a queue or a lane is missing
    OTHER_DATABASE = "other_database"  # nothing: it is not the database that the job was drafted for
    IN_FLIGHT = "in_flight"  # nothing: another transaction submits with the same idempotency key
    KEY_REUSED = "key_reused"  # nothing: the idempotency key belongs to another submission


class Receipt(msgspec.Struct, frozen=True):
    """What a submission is answered with, also when it is repeated with its idempotency key."""

    job_id: str
    run_id: str
    fire_at: datetime

    def encode(self) -> str:
        return _encoder.encode(self).decode()


def read_receipt(body: bytes | str) -> Receipt:
    return msgspec.json.decode(body, type=Receipt)


def keyed(key: str, fields: Mapping[str, Any]) -> KeyedRequest:
    """A submission with an idempotency key. Its digest is that of its fields."""
    if not is_key(key):
        raise InvalidInput("idempotency_key", f"must be 1 to {KEY_MAX_LENGTH} visible ASCII characters")
    text = msgspec.json.encode(["submit", fields], order="deterministic")
    return KeyedRequest(key, blake2b(text, digest_size=32).digest())


def key_reused() -> InvalidInput:
    return InvalidInput("idempotency_key", "was used for another submission")


@dataclass(frozen=True, slots=True)
class PreparedJob:
    """A job that the application's transaction is to write."""

    number: int
    name: str
    fire_at: datetime
    fields: dict[str, Any]
    needed: References

    @property
    def job_id(self) -> str:
        return format_id(Prefix.JOB, self.number)

    @property
    def run_id(self) -> str:
        return format_run_id(self.number, to_us(self.fire_at))

    @property
    def document(self) -> str:
        """What `submit_prepared` takes."""
        return _encoder.encode(self.fields).decode()

    @property
    def receipt(self) -> Receipt:
        return Receipt(self.job_id, self.run_id, self.fire_at)

    def keyed(self, request: KeyedRequest) -> "PreparedJob":
        """The job, to be written once for its idempotency key."""
        answer = self.receipt.encode()
        key = {"idempotency_key": request.key, "request": request.digest.hex(), "answer": answer}
        return replace(self, fields=self.fields | key)


async def prepare(tenant: TenantContext, tenant_created_at: datetime, job: object) -> PreparedJob:
    """Draft a one-off from its fields. InvalidFields says what is wrong with it."""
    now_at, draft = await draft_one(tenant, as_spec(job, tenant.default_jitter_seconds))
    (row,) = rows_of(tenant, [draft])
    assert row.fire_at is not None, "a one-off has one"
    fields = row._asdict() | {
        "tenant_id": tenant.tenant_id,
        "tenant_created_at": tenant_created_at,
        "now_at": now_at,
        "digest": row.digest.hex(),
        "labels": msgspec.Raw(row.labels.encode()),
        "retry": msgspec.Raw(row.retry.encode()),
    }
    return PreparedJob(row.job_id, row.name, row.fire_at, fields, references_of(tenant, [draft], [row]))


async def with_references(tenant: TenantContext, job: PreparedJob) -> PreparedJob:
    """Add what the job refers to, and name it by its ids: the application's transaction may not see it."""
    digest, queue = bytes.fromhex(job.fields["digest"]), job.fields["queue"]

    async def find() -> references.ReferredIds | None:
        found = await references.referred(tenant.pool, tenant.tenant_id, digest, queue)
        return None if None in found else found

    tenant.references.forget(job.needed)  # the application's transaction did not find all of it
    found = await tenant.references.write(tenant.pool, job.needed, find)
    return replace(job, fields=job.fields | found._asdict())
