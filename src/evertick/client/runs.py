"""Calls about runs, dead letters and replays."""

from datetime import datetime
from typing import TypeAlias

import msgspec

from evertick.client.request import PREFIX, Request, change, fetch, no_content, path_of, post, struct_of
from evertick.client.transport import Call, Calls, PagedCall, W
from evertick.contract.runs import DeadLetter, Gap, Replay, Replaying, Run, RunDetail, RunOrGap

RunPage: TypeAlias = list[Run]
LetterPage: TypeAlias = list[DeadLetter]
ReplayPage: TypeAlias = list[Replay]

_DEAD_LETTERS = "dead-letters"


class _Identity(msgspec.Struct):
    run_id: str | None


def read_entries(data: bytes) -> list[RunOrGap]:
    """Runs, and gaps, which have no run id."""
    return [
        struct_of(Gap)(raw) if struct_of(_Identity)(raw).run_id is None else struct_of(Run)(raw)
        for raw in struct_of(list[msgspec.Raw])(data)
    ]


class RunCalls(Calls[W]):
    """Read, cancel and replay runs."""

    @PagedCall
    def list(
        self,
        *,
        status: str | None = None,
        from_at: datetime | None = None,
        to_at: datetime | None = None,
        archive: bool = False,
        page_size: int | None = None,
    ) -> Request[RunPage]:
        """The runs of all jobs, newest first. `archive`: also archived ones."""
        found = {
            "status": status,
            "from": from_at,
            "to": to_at,
            "archive": "true" if archive else None,
            "limit": page_size,
        }
        return fetch(path_of("runs"), struct_of(RunPage), **found)

    @Call
    def get(self, run_id: str, *, archive: bool = False) -> Request[RunDetail]:
        """A run with its attempts. `archive`: also archived ones."""
        return fetch(path_of("runs", run_id), struct_of(RunDetail), archive="true" if archive else None)

    @Call
    def cancel(self, run_id: str, *, idempotency_key: str | None = None) -> Request[RunDetail]:
        """Cancel a run. The outcome of a running handler is ignored."""
        return post(path_of("runs", run_id, "cancel"), struct_of(RunDetail), key=idempotency_key)

    @Call
    def replay(self, run_id: str, *, idempotency_key: str | None = None) -> Request[Run]:
        """Run a finished run again, as a new run."""
        return post(path_of("runs", run_id, "replay"), struct_of(Run), key=idempotency_key)


class DeadLetterCalls(Calls[W]):
    """Read, replay and dismiss dead letters."""

    @PagedCall
    def list(self, *, job_id: str | None = None, page_size: int | None = None) -> Request[LetterPage]:
        """The dead letters of all jobs or of one, newest first."""
        return fetch(path_of(_DEAD_LETTERS), struct_of(LetterPage), job_id=job_id, limit=page_size)

    @Call
    def replay(self, run_id: str, *, idempotency_key: str | None = None) -> Request[Run]:
        """Run a dead letter's run again, and remove the letter."""
        return post(path_of(_DEAD_LETTERS, run_id, "replay"), struct_of(Run), key=idempotency_key)

    @Call
    def replay_many(  # noqa: PLR0913 - the fields of the request
        self,
        *,
        job_id: str | None = None,
        queue: str | None = None,
        error: str | None = None,
        label: str | None = None,
        died_from: datetime | None = None,
        died_before: datetime | None = None,
        rate_per_second: float = 100.0,
        background: bool = False,
        idempotency_key: str | None = None,
    ) -> Request[Replaying]:
        """Replay all that match, at a rate: their runs are created at once, and become due one after the other.

        What is too much for one request, or all with `background`, is left to the replay `replay_id`.
        """
        chosen = {
            "job_id": job_id,
            "queue": queue,
            "error": error,
            "label": label,
            "died_from": died_from,
            "died_before": died_before,
        }
        body = {"filter": chosen, "rate_per_second": rate_per_second, "background": background}
        return post(f"{PREFIX}/{_DEAD_LETTERS}:replay", struct_of(Replaying), body, key=idempotency_key)

    @Call
    def dismiss(self, run_id: str) -> Request[None]:
        """Remove a dead letter. Its run stays in the history."""
        return change("DELETE", path_of(_DEAD_LETTERS, run_id), no_content)


class ReplayCalls(Calls[W]):
    """Read and cancel replays of many dead letters, which `dead_letters.replay_many` starts."""

    @PagedCall
    def list(self, *, page_size: int | None = None) -> Request[ReplayPage]:
        """The replays, newest first."""
        return fetch(path_of("replays"), struct_of(ReplayPage), limit=page_size)

    @Call
    def get(self, replay_id: str) -> Request[Replay]:
        """A replay, and how much is left of it."""
        return fetch(path_of("replays", replay_id), struct_of(Replay))

    @Call
    def cancel(self, replay_id: str, *, idempotency_key: str | None = None) -> Request[Replay]:
        """Cancel a replay. Runs that it has made stay."""
        return post(path_of("replays", replay_id, "cancel"), struct_of(Replay), key=idempotency_key)
