"""Writes the pages that are generated from code. Run it after a change there: `python docs/generate.py`.

With `--check` it writes nothing, and fails if a page is stale.
"""  # noqa: INP001  (a script beside the pages, not a package)

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from evertick.api.app import operations
from evertick.api.openapi.document import describe
from evertick.domain.events import EventType
from evertick.domain.states import GapReason, OpenAttempt, Outcome, RunReason, RunStatus, StateWord, gap_status
from evertick.metrics.catalog import ALL, LAG_BOUNDS, PROCESS

DOCS = Path(__file__).parent
sys.path[:0] = [str(DOCS), str(DOCS.parent / "tests")]

from generators.cli_page import cli_page  # noqa: E402 - as those below
from generators.diagrams import DIAGRAMS  # noqa: E402 - as those below
from generators.errors_page import errors_page  # noqa: E402 - as those below
from generators.http_page import event_types_page, http_page  # noqa: E402 - as those below

from state_model import ATTEMPT_TRANSITIONS, RUN_TRANSITIONS, Event  # noqa: E402 - from beside the tests

_INTRO = """\
# The states of runs and attempts

<!-- Generated from domain/states.py and tests/state_model.py: edit there, then run `python docs/generate.py`. -->

A **run** is one occurrence of a job. It has one or more **attempts**. Each attempt ends with exactly one outcome.
The worker's result, the reaper's `lost` and a user's `cancelled` may race: the first one that is recorded
counts, the others are ignored. There are no transitions besides those in the tables."""

_RUN_NOTES = """\
- A `pending` run waits for its first fire, for another run, after a deferral, or in a lane for a worker. A retry is
  `retrying` until it is due, and then `pending`.
- A cancel ends a run in any unfinished state immediately. A worker learns of it with its next check or heartbeat;
  an outcome that it records later is stale.
- A replay does not change the finished run, but removes its dead letter. It creates a new run with its own fire
  time, the reason `replay` and attempts numbered from 1. History is never rewritten, and no tick is counted twice."""

_ATTEMPT_NOTES = """\
- `failed`, `timed_out` and `lost` use up an attempt. The same statement sets a retry timer or writes a dead letter.
- `deferred` uses up no attempt: the same attempt number follows as a new row with a larger fencing token.
- `put_back` uses up no attempt and writes no row: the same row can be leased again, with the same token.
- A cancelled attempt that was never leased stays in its lane; leases skip it."""


def states_page() -> str:
    """The whole of `docs/states.md`."""
    parts = [
        _INTRO,
        "## Runs",
        "![The states of a run](images/run-states.svg)",
        _transitions(RUN_TRANSITIONS.items()),
        _table("status", RunStatus),
        _RUN_NOTES,
        "Why a run exists:",
        _table("reason", RunReason),
        "## Attempts",
        "![The states of an attempt](images/attempt-states.svg)",
        _transitions(ATTEMPT_TRANSITIONS.items()),
        _table("state", [*OpenAttempt, *Outcome]),
        _ATTEMPT_NOTES,
        "## Events",
        _table("event", Event, set_by="caused by"),
        "## Gaps",
        "The list of runs shows ticks that did not run as a gap:",
        _gaps(),
    ]
    return "\n\n".join(parts) + "\n"


def _transitions(transitions: Iterable[tuple[tuple[str | None, str], str]]) -> str:
    """A row for each pair of states, with the events that lead from one to the other."""
    found: dict[tuple[str, str], list[str]] = {}
    for (source, event), target in transitions:
        found.setdefault((f"`{source}`" if source else "not there yet", f"`{target}`"), []).append(f"`{event}`")
    rows = [f"| {source} | {', '.join(events)} | {target} |" for (source, target), events in found.items()]
    return "\n".join(["| from | event | to |", "|---|---|---|", *rows])


def _table(head: str, words: Iterable[StateWord], set_by: str = "set by") -> str:
    rows = [f"| `{word}` | {word.set_by} | {word.meaning} |" for word in words]
    return "\n".join([f"| {head} | {set_by} | means |", "|---|---|---|", *rows])


def _gaps() -> str:
    rows = [f"| `{reason}` | `{gap_status(reason)}` | {reason.meaning} |" for reason in GapReason]
    return "\n".join(["| reason | status | means |", "|---|---|---|", *rows])


_METRICS_INTRO = """\
# Metrics

<!-- Generated from metrics/catalog.py and docs/generate.py: edit there, then run `python docs/generate.py`. -->

Every process has metrics in the text format of Prometheus.

- A process with the API (`evertick up`) serves `/metrics` on the API's port.
- Any process (`evertick up`, `evertick scheduler`, `evertick worker`, `App.run`, a remote `Worker`) serves `/metrics`
  and `/livez` on a port of its own if it is given one: `--metrics-port`, or `EVERTICK_METRICS_PORT`.

```yaml
scrape_configs:
  - job_name: evertick
    authorization: {credentials_file: /etc/prometheus/evertick.key}   # EVERTICK_METRICS_KEY
    static_configs: [{targets: ["api-1:8700", "scheduler-1:9464", "worker-1:9464"]}]
```

**Who may read them.** The port listens on `EVERTICK_METRICS_HOST`, loopback unless it is set. A process that other
machines can reach starts only with `EVERTICK_METRICS_KEY`, which readers send as `Authorization: Bearer …`, or with
`EVERTICK_METRICS_OPEN=true`. The API accepts the same key, and keys of the hosting tenant
([monitoring](http-api.md#monitoring)). Metrics name queues, and neither tenants nor jobs.

**What a scrape costs.** Figures of the process are in memory. Figures of the cluster, from `evertick_database_up` on,
are shown by all processes but workers. They are read from the database when they are asked for, at most once a second
in each process, in bounded statements of five seconds together. If the database does not answer, `evertick_database_up`
is 0, the others are missing, and the scrape still succeeds. They are the same in all processes: use `max`, not `sum`.

**Queues.** The label `queue` is the name of a queue. Tenants choose these names, so a process shows 50: the first that
it meets, or those that `EVERTICK_METRICS_QUEUES` lists. All others are `other`. Queues of the same name of different
tenants are one series. A remote worker on several queues has one series for them.

**Bounds.** Lags have the bounds {bounds} seconds. From 0.05 to 1.5 seconds neighbours differ by a half at most, so an
estimated p999 is off by less than that. Choose an objective that is one of the bounds: the share of attempts within it
is then exact.

**Lag and legs.** `evertick_lag_seconds` is from due time to start. The process that starts an attempt observes it when
the attempt has ended, or after five seconds if it runs longer. Of more than a thousand a second in one process a random
sample is observed. For a pull worker the attempt starts when the API hands it out (`role="api"`); the worker itself
(`role="remote_worker"`) observes only the last two legs. `evertick_fire_lag_seconds` is from due time to firing,
observed by schedulers, whether or not a worker is there.

**Counters and rows.** A counter says what the process was told by the database. It begins at 0 with each process.
Without faults, sums of counters equal the rows: a test compares them. If the answer to a statement is lost, its effects
may be missing in the counters, or counted as `stale`."""

_METRICS_KEDA = """\
## Scaling workers by the queue

KEDA, for the workers of the queue `billing`: one worker for each 100 attempts that wait, at most 20.

```yaml
apiVersion: keda.sh/v1alpha1
kind: ScaledObject
metadata: {name: billing-workers}
spec:
  scaleTargetRef: {name: billing-workers}
  minReplicaCount: 1
  maxReplicaCount: 20
  triggers:
    - type: prometheus
      metadata:
        serverAddress: http://prometheus:9090
        query: max(evertick_ready_attempts{queue="billing"})
        threshold: "100"
    - type: prometheus      # few attempts that take long: scale by how long the oldest waits
      metadata:
        serverAddress: http://prometheus:9090
        query: max(evertick_oldest_ready_seconds{queue="billing"})
        threshold: "30"
```

With an HPA and prometheus-adapter, the same figure is an external metric:

```yaml
rules:
  external:
    - seriesQuery: 'evertick_ready_attempts{queue!=""}'
      resources: {namespaced: false}
      name: {as: evertick_ready_attempts}
      metricsQuery: max by (queue) (evertick_ready_attempts{<<.LabelMatchers>>})
```

Name the queues that you scale by in `EVERTICK_METRICS_QUEUES`. A queue with a series is shown as 0 when it is empty.
Dispatchers scale by `queue="http"`. Schedulers need no scaling by load: one fires tens of thousands a second.

## Alerts and dashboard

`deploy/prometheus/evertick.rules.yml` has recording rules and alerts, each with a [runbook](runbooks/README.md), and
`deploy/grafana/evertick.json` a dashboard."""


def metrics_page() -> str:
    """The whole of `docs/metrics.md`."""
    rows = [
        f"| `{each.name}` | {each.kind} | {', '.join(f'`{label}`' for label in each.labels) or 'none'} | {each.text} |"
        for each in ALL
    ]
    rows += [f"| `{name}` | {kind} | none | {text} |" for name, (kind, text) in PROCESS.items()]
    table = "\n".join(["| name | type | labels | meaning |", "|---|---|---|---|", *rows])
    bounds = ", ".join(f"{bound:g}" for bound in LAG_BOUNDS)
    return "\n\n".join([_METRICS_INTRO.replace("{bounds}", bounds), "## All metrics", table, _METRICS_KEDA]) + "\n"


def events_page() -> str:
    """`docs/events.md` with the table of types as they are."""
    before, begin, rest = _read("events.md").partition("<!-- begin: types")
    mark, _, rest = rest.partition("\n")
    _, end, after = rest.partition("<!-- end: types -->")
    table = _table("type", EventType, set_by="caused by")
    return f"{before}{begin}{mark}\n\n{table}\n\n{end}{after}"


_JOBS_INTRO = """\
# The fields of a job

<!-- Generated from contract/job.py and docs/generate.py: edit there, then run `python docs/generate.py`. -->

`POST /jobs`, `PUT /jobs/by-name/{name}` and `PATCH /jobs/{job_id}` take these fields; so do `evertick jobs add --set`
and `jobs import`, and the decorators and `submit` of `App` by keyword. A field that is left out, or null, has its
default; a `PATCH` leaves it as it is. Unknown fields are refused.

| field | default | values | meaning |
|---|---|---|---|"""

_JOBS_OUTRO = """\
An answer also has `job_id`, `status` (`active`, `paused`, `finished`), `next_run_at`, `spec_version`, `created_at`,
`updated_at`, `paused_at`, `pause_reason`, `last_run_at`, `last_run_status` and `consecutive_failures`. They are
read-only: `evertick jobs import` ignores them.

## Targets

| type | fields |
|---|---|
| `worker` | `queue` (default `default`), `handler`: a function of a worker |
| `http` | `url`, `method` (default `POST`), `headers`: a [webhook](http-api.md#webhooks) |
| `kafka`, `rabbitmq`, `redis_stream`, `nats`, `sqs` | a `connection` and where to publish: see [brokers](brokers.md) |

## One after the other: chains and DAGs

A job does not depend on other jobs. Chains, fan-out and DAGs are out of scope: Evertick fires ticks and accounts for
them. What to use with it:

- A few steps that belong together: one handler that does them, each idempotent by `run.idempotency_key`. A retry goes
  through them again.
- The next step as a job of its own: the handler submits it as its last act, with `run.idempotency_key` in its name, so
  that a second attempt submits it once. `ordering_key` keeps runs of one key in order.
- Workflows with branches, joins and state: a workflow engine (Temporal, Airflow, Prefect, Dagster). A job of Evertick
  starts the workflow by its HTTP API, with the run's idempotency key as the workflow's id."""

_MEANINGS = {
    "name": "unique in the tenant; generated if left out: the handler and the id of the job",
    "schedule": "[when it fires](schedules.md)",
    "timezone": "of the schedule",
    "dst_gap": "what becomes of a time that [does not exist](schedules.md)",
    "dst_overlap": "what becomes of a time that exists twice",
    "start_at": "it does not fire before",
    "end_at": "it does not fire after",
    "target": "where its runs go; see below",
    "payload": "what each run is given, 64 KB at most; a trigger may bring its own",
    "idempotency_key_template": "the key of a run, the same in all its attempts",
    "max_retries": "attempts after the first one; a lost worker's attempt counts",
    "retry_backoff": "how the pauses between attempts grow, with jitter",
    "retry_delay_seconds": "the first pause",
    "retry_max_delay_seconds": "the longest pause",
    "timeout_seconds": "of each attempt; a webhook's also has the tenant's maximum",
    "missed_window": "what becomes of [missed ticks](schedules.md)",
    "misfire_grace_seconds": "a tick that is later than this is missed",
    "max_missed": "with `RUN_ALL`: the newest of so many run, the others are a gap",
    "concurrent_policy": "what a tick does while a run is open: become a gap, run too up to `max_concurrent`, wait (one"
    " does), or cancel the open one. Triggers obey it, unless forced",
    "max_concurrent": "with `ALLOW`: so many runs are open at once",
    "jitter_seconds": "each tick is due up to so much later, by a stable offset of the job",
    "priority": "which of a tenant's runs come first: `high`, `normal` and `low` share 16:4:1",
    "labels": "for filters; keys and values are strings",
    "retain_seconds": "a finished one-off is removed after this; its history stays",
}


def job_fields_page() -> str:
    """The whole of `docs/job-fields.md`."""
    document = msgspec.json.decode(describe(operations()))
    fields = document["components"]["schemas"]["JobRequest"]["properties"]
    rows = [
        f"| `{name}` | {_default(name, schema)} | {_values(name, schema)} |"
        f" {_MEANINGS.get(name) or _described(schema)} |"
        for name, schema in fields.items()
    ]
    return "\n".join([_JOBS_INTRO, *rows, "", _JOBS_OUTRO]) + "\n"


def _default(name: str, schema: dict[str, Any]) -> str:
    if "default" not in schema:
        return "needed"
    if schema["default"] is None:
        return "as long as the interval, an hour at most" if name == "misfire_grace_seconds" else "none"
    return f"`{msgspec.json.encode(schema['default']).decode().strip(chr(34))}`"


def _values(name: str, schema: dict[str, Any]) -> str:
    given = _FORMS.get(name)
    first = schema.get("anyOf", [schema])[0]
    inner = first.get("anyOf", [first])[0]
    if given is not None:
        return given
    if "enum" in inner:
        return ", ".join(f"`{value}`" for value in inner["enum"])
    if "minimum" in inner and "maximum" in inner:
        return f"{inner['minimum']:,} to {inner['maximum']:,}"
    return "text" + (f" of {inner['maxLength']} characters at most" if "maxLength" in inner else "")


_FORMS = {
    "schedule": "cron, `@daily`, `every 5m`, `RRULE:…`, an instant, `now`, `in 90s`, `manual`",
    "timezone": "IANA name",
    "start_at": "instant",
    "end_at": "instant",
    "target": "object",
    "payload": "any JSON",
    "labels": "object of strings, 64 at most",
    "must_succeed_within": "seconds, or text such as `26h`",
    "alert_if_running_seconds": "seconds, or `2x`",
}


def _described(schema: dict[str, Any]) -> str:
    first = schema.get("anyOf", [schema])[0]
    text = first.get("description")
    assert text, f"no meaning for {schema}"
    return str(text).rstrip(".")


_DECISIONS_INTRO = """\
# Decisions

<!-- Generated from docs/decisions by `python docs/generate.py`. -->

Choices that others might undo without knowing the reasons: each page has the question, the decision and its cost.
[Architecture](../ARCHITECTURE.md) is the map of the code."""


def decisions_page() -> str:
    """`docs/decisions.md`: the list of decisions."""
    pages = sorted((DOCS / "decisions").glob("*.md"))
    titles = [page.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ") for page in pages]
    numbered = [title.partition(". ") for title in titles]
    rows = [
        f"| {number} | [{title}](decisions/{page.name}) |"
        for page, (number, _, title) in zip(pages, numbered, strict=True)
    ]
    return "\n".join([_DECISIONS_INTRO, "", "| | decision |", "|---|---|", *rows]) + "\n"


PAGES = {
    "decisions.md": decisions_page,
    "events.md": events_page,
    "job-fields.md": job_fields_page,
    "metrics.md": metrics_page,
    "reference/cli.md": cli_page,
    "reference/errors.md": errors_page,
    "reference/events.md": event_types_page,
    "reference/http.md": http_page,
    "states.md": states_page,
    **DIAGRAMS,
}


def main() -> None:
    stale = [name for name, page in PAGES.items() if _read(name) != page()]
    if "--check" in sys.argv:
        sys.exit(f"stale: {', '.join(stale)}: run `python docs/generate.py`" if stale else 0)
    for name in stale:
        (DOCS / name).write_text(PAGES[name](), encoding="utf-8", newline="\n")


def _read(name: str) -> str:
    page = DOCS / name
    return page.read_text(encoding="utf-8") if page.exists() else ""


if __name__ == "__main__":
    main()
