"""Calls about runs."""

from datetime import datetime
from typing import TypeAlias

import msgspec

from evertick.client.request import Request, look, path_of, post, shaped
from evertick.client.sections import Listed, Section, Sent, W
from evertick.contract.runs import Gap, Run, RunDetail, RunOrGap

RunPage: TypeAlias = list[Run]

_read_run = shaped(Run)
_read_gap = shaped(Gap)
_read_runs = shaped(list[Run])
_read_detail = shaped(RunDetail)


class _Identity(msgspec.Struct):
    run_id: str | None


_read_raw = shaped(list[msgspec.Raw])
_read_identity = shaped(_Identity)


def read_entries(data: bytes) -> list[RunOrGap]:
    """Runs, and gaps, which have no run id."""
    return [_read_gap(raw) if _read_identity(raw).run_id is None else _read_run(raw) for raw in _read_raw(data)]


class Runs(Section[W]):
    """Reading, cancelling and repeating runs."""

    @Listed
    def list(
        self,
        *,
        status: str | None = None,
        from_at: datetime | None = None,
        to_at: datetime | None = None,
        page_size: int | None = None,
    ) -> Request[RunPage]:
        """The runs of all jobs, latest first."""
        found = {"status": status, "from": from_at, "to": to_at, "limit": page_size}
        return look(path_of("runs"), _read_runs, **found)

    @Sent
    def get(self, run_id: str) -> Request[RunDetail]:
        """A run with its attempts."""
        return look(path_of("runs", run_id), _read_detail)

    @Sent
    def cancel(self, run_id: str, *, idempotency_key: str | None = None) -> Request[RunDetail]:
        """Cancel a run, whatever its worker comes to."""
        return post(path_of("runs", run_id, "cancel"), _read_detail, key=idempotency_key)

    @Sent
    def replay(self, run_id: str, *, idempotency_key: str | None = None) -> Request[Run]:
        """Run a finished run again, as a new one."""
        return post(path_of("runs", run_id, "replay"), _read_run, key=idempotency_key)
