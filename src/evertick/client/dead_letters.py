"""Calls about dead letters."""

from datetime import datetime
from typing import TypeAlias

from evertick.client.request import PREFIX, Request, change, look, nothing, path_of, post, shaped
from evertick.client.sections import Listed, Section, Sent, W
from evertick.contract.dead_letters import DeadLetter, Replaying
from evertick.contract.runs import Run

_SECTION = "dead-letters"
_read_letters = shaped(list[DeadLetter])
_read_run = shaped(Run)
_read_replaying = shaped(Replaying)

LetterPage: TypeAlias = list[DeadLetter]


class DeadLetters(Section[W]):
    """Reading, replaying and dismissing dead letters."""

    @Listed
    def list(self, *, job_id: str | None = None, page_size: int | None = None) -> Request[LetterPage]:
        """The dead letters, or a job's, those that died last first."""
        return look(path_of(_SECTION), _read_letters, job_id=job_id, limit=page_size)

    @Sent
    def replay(self, run_id: str, *, idempotency_key: str | None = None) -> Request[Run]:
        """Run a dead letter's run again, and remove the letter."""
        return post(path_of(_SECTION, run_id, "replay"), _read_run, key=idempotency_key)

    @Sent
    def replay_many(
        self,
        *,
        job_id: str | None = None,
        died_from: datetime | None = None,
        died_before: datetime | None = None,
        rate_per_second: float = 100.0,
        idempotency_key: str | None = None,
    ) -> Request[Replaying]:
        """Replay all that match, at a rate: each becomes a run at once, and is due at its turn."""
        chosen = {"job_id": job_id, "died_from": died_from, "died_before": died_before}
        body = {"filter": chosen, "rate_per_second": rate_per_second}
        return post(f"{PREFIX}/{_SECTION}:replay", _read_replaying, body, key=idempotency_key)

    @Sent
    def dismiss(self, run_id: str) -> Request[None]:
        """Remove a dead letter. Its run stays in the history."""
        return change("DELETE", path_of(_SECTION, run_id), nothing)
