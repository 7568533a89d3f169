"""A preview as the JSON object that scripts read."""

from datetime import UTC, datetime
from typing import Any

from evertick.domain.schedule.preview import Preview


def as_json(preview: Preview) -> dict[str, Any]:
    return {
        "schedule": preview.schedule.text,
        "timezone": preview.schedule.timezone,
        "tzdb": preview.tzdb_version,
        "description": preview.description,
        "upcoming": [
            {
                "fire_at": _utc(row.fire_at),
                "due_at": _utc(row.due_at),
                "local": row.local.isoformat(),
                "notes": list(row.notes),
            }
            for row in preview.rows
        ],
        "lost": [
            {
                "at": _utc(lost.at),
                "ticks": lost.ticks,
                "first_local": lost.first_local.isoformat(),
                "last_local": lost.last_local.isoformat(),
                "note": lost.note,
            }
            for lost in preview.lost
        ],
        "findings": [
            {"code": finding.code, "severity": finding.severity.value, "message": finding.message}
            for finding in preview.findings
        ],
    }


def _utc(at: datetime) -> str:
    """RFC 3339 with `Z`."""
    return f"{at.astimezone(UTC).replace(tzinfo=None).isoformat()}Z"
