"""The pages that every check goes through, and data to show on them."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from browser.live_server import LiveServer

PAGES = {
    "overview": "/",
    "jobs": "/jobs",
    "jobs-by-next-run": "/jobs?sort=next_run",
    "jobs-failing": "/jobs?sort=failures",
    "jobs-by-last-status": "/jobs?sort=last_status",
    "jobs-none": "/jobs?q=no-such-job",
    "runs": "/runs",
    "runs-dead": "/runs?status=dead",
    "run": "/runs/{run}",
    "run-failed": "/runs/{failed}",
    "run-open": "/runs/{open}",
    "dead-letters": "/dead-letters",
    "dead-letters-filtered": "/dead-letters?error=bank",
    "alerts": "/alerts",
    "alerts-none": "/alerts?status=open&condition=quota",
    "forecast": "/forecast",
    "forecast-month": "/forecast?horizon=30d",
    "cluster": "/cluster",
    "settings-keys": "/settings",
    "settings-tenants": "/settings/tenants",
    "settings-tenant": "/settings/tenants/{tenant}",
    "settings-audit": "/settings/audit-log",
    "job-new": "/jobs/new",
    "job": "/jobs/{job}",
    "job-edit": "/jobs/{job}/edit",
    "job-paused": "/jobs/{paused}",
    "job-hostile": "/jobs/{hostile}",
    "jobs-bulk": "/jobs/bulk?action=pause&all=true&q=billing",
    "not-found": "/no-such-page",
}
"""By the names of their screenshots. Names in braces stand for ids of the server's."""


def paths(server: LiveServer) -> dict[str, str]:
    """The pages with the ids of this server."""
    return {name: path.format(**server.ids) for name, path in PAGES.items()}


HOSTILE = (
    "<script>document.title='hacked'</script>",
    "\"><img src=x onerror=document.title='hacked'>",
    "'onmouseover='document.title=1",
    "javascript:document.title='hacked'",
    "</title><svg onload=document.title='hacked'>",
    "{{ 7*7 }}${7*7}",
    "&lt;b&gt;",
)
"""Texts that would do something if they were not escaped."""

ORDINARY = (
    "The bank is closed until Monday",
    "export-of-all-invoices-of-the-european-subsidiaries-to-the-data-lake-of-the-finance-department",
    "newsletter, weekly",
    "r\u00e9conciliation des paiements",
    "warehouse/load/customers",
    "przelewy/\u0142\u00f3d\u017a",
    "thumbnails",
)
"""The same for screenshots: texts as people write them, one of them long."""

_TEAMS = ("billing", "growth", "data", "platform")
_WORDS = (
    "invoices",
    "digest",
    "cleanup",
    "sync",
    "report",
    "retry-payments",
    "index",
    "backup",
    "rates",
    "usage-rollup",
)
_SCHEDULES = ("* * * * *", "*/5 * * * *", "0 * * * *", "30 2 * * *", "every 15m", "0 9 * * 1")


_ALERTS = (
    ("late", "started 94 s after its time"),
    ("failures", "3 runs failed in a row"),
    ("no_success", "none for 26 h: {text}"),
)
_OPEN_ALERT = """
INSERT INTO evertick.alerts (alert_id, tenant_id, job_id, opened_at, openings, is_open, is_told_open, condition,
                             subject, detail)
SELECT $1::integer, 1, job_id, now() - $1::integer * interval '7 minutes', $1::integer, true, true, $3, job_id::text, $4
  FROM evertick.jobs WHERE name = $2
"""


def fill(server: LiveServer, jobs: int = 40, texts: Sequence[str] = HOSTILE, triggers: int = 3) -> None:
    """Jobs, runs that succeeded and failed, dead letters, paused jobs, alerts; and texts where people type some.

    Half of the jobs are triggered so many times, and one ten times as often.
    """
    with server.client(server.key("admin")) as api:
        made: list[dict[str, Any]] = []
        for number in range(jobs):
            team, word = _TEAMS[number % 4], _WORDS[number % 10]
            target: dict[str, Any] = {"type": "worker", "queue": team, "handler": word.replace("-", "_")}
            if number % 5 == 4:
                target = {"type": "http", "url": f"https://hooks.{team}.example.com/{word}"}
            made.append(
                _created(
                    api.post(
                        "/jobs",
                        json={
                            "name": f"{team}/{word}-{number:02}",
                            "schedule": _SCHEDULES[number % len(_SCHEDULES)],
                            "target": target,
                            "labels": {"team": team, "tier": "gold" if number % 3 else "silver"},
                            "max_retries": 0,
                        },
                    )
                )
            )
        for place, name in enumerate(texts):
            labels = {"note": name[:60]} if place < 3 else {}
            job = {"name": name, "schedule": "0 0 1 1 *", "target": made[0]["target"], "labels": labels}
            hostile = _created(api.post("/jobs", json={**job, "payload": {"text": name}}))
            server.ids["hostile"] = hostile["job_id"]
        for job in made[6:9]:
            api.post(f"/jobs/{job['job_id']}/pause", json={"reason": texts[0]}).raise_for_status()
        change = {"schedule": "*/10 * * * *", "timeout_seconds": 120, "payload": {"report": "weekly", "rows": 100}}
        api.patch(f"/jobs/{made[1]['job_id']}", json=change).raise_for_status()
        server.ids |= {"job": made[1]["job_id"], "paused": made[6]["job_id"]}
        for place, (condition, detail) in enumerate(_ALERTS):
            server.execute(_OPEN_ALERT, place + 1, made[10 + place]["name"], condition, detail.format(text=texts[1]))
        server.ids["tenant"] = api.get("/tenants").raise_for_status().json()[0]["tenant_id"]
        _run([job for job in made[:24] if job["target"]["type"] == "worker"], server, api, texts[0], triggers)


def _created(answer: Any) -> dict[str, Any]:
    assert answer.status_code == 201, answer.text
    found: dict[str, Any] = answer.json()
    return found


def _run(jobs: Sequence[dict[str, Any]], server: LiveServer, api: Any, text: str, triggers: int) -> None:
    """Trigger jobs, and record what became of their runs: some fail, one is at work."""
    for job in jobs:
        for _ in range(triggers):
            api.post(f"/jobs/{job['job_id']}/trigger", json={"force": True}).raise_for_status()
    for _ in range(10 * triggers):
        api.post(f"/jobs/{server.ids['job']}/trigger", json={"force": True}).raise_for_status()
    left = triggers * (len(jobs) + 10)
    idle = {"name": "platform/no-worker", "schedule": "manual", "target": {"type": "worker", "handler": "nobody"}}
    nobody = _created(api.post("/jobs", json=idle))["job_id"]
    server.ids["open"] = api.post(f"/jobs/{nobody}/trigger", json={}).raise_for_status().json()["run_id"]
    with server.client(server.key("worker")) as worker:
        while left > 1:
            for queue in _TEAMS:
                lease = {"worker_id": "w1", "max": 20, "wait_seconds": 1}
                attempts = worker.post(f"/queues/{queue}/lease", json=lease).raise_for_status().json()["attempts"]
                left -= len(attempts)
                outcomes = [_outcome(attempt, place, text) for place, attempt in enumerate(attempts)]
                for attempt, outcome in zip(attempts, outcomes, strict=True):
                    server.ids["run" if outcome["result"] == "success" else "failed"] = attempt["run_id"]
                if outcomes:
                    worker.post("/outcomes", json={"worker_id": "w1", "outcomes": outcomes}).raise_for_status()


def _outcome(attempt: dict[str, Any], place: int, text: str) -> dict[str, Any]:
    now_at = datetime.now(UTC)
    took = timedelta(milliseconds=20 + 37 * place % 160)
    times = {"started_at": (now_at - took).isoformat(), "finished_at": now_at.isoformat()}
    outcome = {"token": attempt["token"], "result": "success", **times}
    if place % 6 == 5:
        error = f"Traceback (most recent call last):\n  {text}\nConnectionError: the bank did not answer"
        outcome |= {"result": "failed", "error": error}
    return outcome
