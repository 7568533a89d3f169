"""Scenario `pages`: how long the server takes for each page of the dashboard, with many jobs and a long history.

The server runs in this process, so that the time of its statements is known; pages are requested over HTTP with a
session, one after the other. Each round requests every page once, and pages of one job or run another one each time:
so what the server keeps between two looks is as old as it is for people.
"""

import asyncio
import http.client
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Annotated, Any
from urllib.parse import urlencode, urlsplit

from evertick.api.server import ApiServer
from evertick.bench.page_data import History, PageData, write_page_data
from evertick.bench.processes import BenchFailed
from evertick.bench.queries import add_tenants
from evertick.bench.scenario import Jobs, Option, Scenario, Seed
from evertick.bench.testbed import Testbed
from evertick.config.settings import Settings
from evertick.dashboard.site import SITE
from evertick.domain.access import KeyRole
from evertick.metrics.catalog import STATEMENT_SECONDS
from evertick.usecases.tenants import keys, tenants

TENANTS = 100
GOAL_MS = 200
MAX_STATEMENTS = 3
_RANKS = {"p50": 0.5, "p95": 0.95, "p99": 0.99, "max": 1.0}
PAGES = {
    "overview": "/",
    "jobs": "/jobs",
    "jobs by name": "/jobs?sort=name",
    "jobs by next run": "/jobs?sort=next_run",
    "jobs by failures": "/jobs?sort=failures",
    "jobs by last status": "/jobs?sort=last_status",
    "jobs, search": "/jobs?q=bench-",
    "jobs, label": "/jobs?q=team:team-7",
    "jobs, queue": "/jobs?queue=pages-3",
    "jobs, handler by next run": "/jobs?handler=handler_7&sort=next_run",
    "jobs, host": "/jobs?target_host=host-20.example.com",
    "jobs, paused": "/jobs?status=paused",
    "jobs, nothing fits": "/jobs?q=team:none",
    "bulk": "/jobs/bulk?action=pause&all=true&q=team:team-7",
    "new job": "/jobs/new",
    "job": "/jobs/{job}",
    "busy job": "/jobs/{busy}",
    "paused job": "/jobs/{paused}",
    "edit job": "/jobs/{job}/edit",
    "runs": "/runs",
    "runs, dead": "/runs?status=dead",
    "run": "/runs/{run}",
    "dead letters": "/dead-letters",
    "forecast, 24 hours": "/forecast",
    "forecast, 30 days": "/forecast?horizon=30d",
    "cluster": "/cluster",
    "keys": "/settings",
    "tenants": "/settings/tenants",
    "tenant": "/settings/tenants/{tenant}",
    "audit log": "/settings/audit-log",
}


@dataclass(frozen=True, slots=True)
class PagesOptions:
    jobs: Jobs = 100_000
    runs_per_job: Annotated[int, Option("Runs of each job in the history.", 1, 10_000)] = 10
    busy_runs: Annotated[int, Option("Further runs of one job.", 0, 1_000_000)] = 20_000
    days: Annotated[int, Option("Days of the history.", 1, 90)] = 30
    requests: Annotated[int, Option("Requests of each page.", 1, 10_000)] = 50
    only: Annotated[str, Option("Only pages whose names begin with this.")] = ""
    seed: Seed = 1


@dataclass(slots=True)
class _Measured:
    """One page: how long each request took, in milliseconds, and its statements by name.

    `cpu_ms` is of this process and of an embedded server: on a busy machine, requests wait for a core.
    """

    took_ms: list[float] = field(default_factory=list)
    statements_ms: list[float] = field(default_factory=list)
    cpu_ms: float = 0.0
    by_statement: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    bytes: int = 0

    @property
    def fields(self) -> dict[str, Any]:
        slowest = sorted(self.by_statement.items(), key=lambda each: -each[1])[:MAX_STATEMENTS]
        return {
            "first": round(self.took_ms[0], 1),
            **_percentiles(self.took_ms[1:] or self.took_ms),
            "cpu": round(self.cpu_ms / len(self.took_ms), 1),
            "kilobytes": round(self.bytes / 1024),
            "statements_p95": _percentiles(self.statements_ms[1:] or self.statements_ms)["p95"],
            "slowest_statements": {name: round(took / len(self.took_ms), 1) for name, took in slowest},
        }


def _percentiles(values: list[float]) -> dict[str, float]:
    ranked = sorted(values)
    last = len(ranked) - 1
    return {name: round(ranked[min(last, int(share * len(ranked)))], 1) for name, share in _RANKS.items()}


class _Browser:
    """Requests pages over one connection, with the cookie of a session."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=600)
        self._cookie = ""

    def log_in(self, key: str) -> None:
        headers = {"Origin": self._address, "Content-Type": "application/x-www-form-urlencoded"}
        self._connection.request("POST", "/login", urlencode({"api_key": key}), headers)
        answer = self._connection.getresponse()
        answer.read()
        self._cookie = (answer.getheader("Set-Cookie") or "").partition(";")[0]
        if not self._cookie:
            raise BenchFailed(f"the login was refused with {answer.status}")

    def get(self, path: str) -> tuple[float, int]:
        """How many milliseconds a page takes, and how large it is."""
        began = time.perf_counter()
        self._connection.request("GET", path, headers={"Cookie": self._cookie})
        answer = self._connection.getresponse()
        size = len(answer.read())
        took = (time.perf_counter() - began) * 1000
        if answer.status != http.client.OK:
            raise BenchFailed(f"{path} was answered with {answer.status}")
        return took, size

    def close(self) -> None:
        self._connection.close()


async def run(testbed: Testbed, options: PagesOptions) -> dict[str, Any]:
    history = History(options.runs_per_job, options.busy_runs, options.days)
    began = time.monotonic()
    data = await write_page_data(testbed, options.jobs, history, options.requests, options.seed)
    await add_tenants(testbed.pool, TENANTS)
    loaded = time.monotonic() - began
    pages = {name: path for name, path in PAGES.items() if name.startswith(options.only)}
    async with _serving(testbed) as browser:
        found = await _measure(testbed, browser, pages, data, options.requests)
    shown = {name: measured.fields for name, measured in found.items()}
    return {
        "runs": options.jobs * options.runs_per_job + options.busy_runs,
        "jobs": options.jobs,
        "loading_seconds": round(loaded, 1),
        "requests": options.requests,
        "slower_than_goal": [name for name, each in shown.items() if each["p95"] >= GOAL_MS],
        "pages_ms": shown,
    }


@asynccontextmanager
async def _serving(testbed: Testbed) -> AsyncIterator[_Browser]:
    """A server in this process, and a browser that is logged in as an admin."""
    api = ApiServer(testbed.url, Settings(port=0), site=SITE)
    await api.start()
    try:
        key = (await keys.create(testbed.pool, testbed.tenant.tenant_id, KeyRole.ADMIN, "bench")).api_key
        browser = _Browser(api.address)
        try:
            await asyncio.to_thread(browser.log_in, key)
            yield browser
        finally:
            browser.close()
    finally:
        await api.stop()


async def _measure(
    testbed: Testbed, browser: _Browser, pages: Mapping[str, str], data: PageData, requests: int
) -> dict[str, _Measured]:
    found = {name: _Measured() for name in pages}
    tenant = tenants.public_id(testbed.tenant.tenant_id)
    testbed.progress.begin("requesting pages", requests)
    for number in range(requests):
        ids = {
            "job": data.jobs[number % len(data.jobs)],
            "run": data.runs[number % len(data.runs)],
            "busy": data.busy,
            "paused": data.paused,
            "tenant": tenant,
        }
        for name, path in pages.items():
            before, cpu_before = _statement_ms(), _cpu_ms(testbed)
            took, size = await asyncio.to_thread(browser.get, path.format(**ids))
            measured, spent = found[name], 0.0
            measured.cpu_ms += _cpu_ms(testbed) - cpu_before
            for statement, total in _statement_ms().items():
                if (more := total - before.get(statement, 0.0)) > 0:
                    measured.by_statement[statement] += more
                    spent += more
            measured.took_ms.append(took)
            measured.statements_ms.append(spent)
            measured.bytes = size
        testbed.progress.reach(number + 1)
    return found


def _cpu_ms(testbed: Testbed) -> float:
    """CPU time so far of this process, and of an embedded server."""
    return (time.process_time() + sum(testbed.cpu_seconds().values())) * 1000


def _statement_ms() -> dict[str, float]:
    """The time of each statement of this process so far."""
    return {
        str(dict(sample.labels)["statement"]): sample.value * 1000
        for sample in STATEMENT_SECONDS.samples()
        if sample.suffix == "_sum"
    }


SCENARIO = Scenario(
    "pages",
    "How long the server takes for each page of the dashboard, and for its statements.",
    "evertick bench pages --jobs 1000000 --runs-per-job 10 --json",
    PagesOptions,
    run,
)
