"""Writes the pages that are generated from code. Run it after a change there: `python docs/generate.py`.

With `--check` it writes nothing, and fails if a page is stale.
"""  # noqa: INP001  (a script beside the pages, not a package)

import sys
from collections.abc import Iterable
from pathlib import Path

from evertick.domain.events import EventType
from evertick.domain.states import GapReason, OpenAttempt, Outcome, RunReason, RunStatus, StateWord, gap_status
from evertick.metrics.catalog import ALL, LAG_BOUNDS, PROCESS

DOCS = Path(__file__).parent
sys.path.insert(0, str(DOCS.parent / "tests"))

from state_model import ATTEMPT_TRANSITIONS, RUN_TRANSITIONS, Event  # noqa: E402 - from beside the tests

_INTRO = """\
# The states of runs and attempts

<!-- Generated from domain/states.py and tests/state_model.py: edit there, then run `python docs/generate.py`. -->

A **run** is one occurrence of a job. It has one or more **attempts**. Each attempt ends with exactly one outcome.
The worker's result, the reaper's `lost` and a user's `cancelled` may race: the first one that is recorded
counts, the others are ignored. There are no transitions besides those in the diagrams."""

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


def _mermaid(transitions: Iterable[tuple[tuple[str | None, str], str]]) -> str:
    """A `stateDiagram-v2` with one arrow per pair of states, labelled with the events that take it."""
    arrows: dict[tuple[str, str], list[str]] = {}
    for (source, event), target in transitions:
        arrows.setdefault((source or "[*]", target), []).append(event)
    lines = [f"    {source} --> {target}: {', '.join(events)}" for (source, target), events in arrows.items()]
    sources = {source for source, _ in arrows}
    finals = dict.fromkeys(target for _, target in arrows if target not in sources)
    return "\n".join(["stateDiagram-v2", *lines, *(f"    {final} --> [*]" for final in finals)])


def states_page() -> str:
    """The whole of `docs/states.md`."""
    parts = [
        _INTRO,
        "## Runs",
        _diagram(RUN_TRANSITIONS.items()),
        _table("status", RunStatus),
        _RUN_NOTES,
        "Why a run exists:",
        _table("reason", RunReason),
        "## Attempts",
        _diagram(ATTEMPT_TRANSITIONS.items()),
        _table("state", [*OpenAttempt, *Outcome]),
        _ATTEMPT_NOTES,
        "## Events",
        _table("event", Event, set_by="caused by"),
        "## Gaps",
        "The list of runs shows ticks that did not run as a gap:",
        _gaps(),
    ]
    return "\n\n".join(parts) + "\n"


def _diagram(transitions: Iterable[tuple[tuple[str | None, str], str]]) -> str:
    return f"```mermaid\n{_mermaid(transitions)}\n```"


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


PAGES = {"events.md": events_page, "metrics.md": metrics_page, "states.md": states_page}


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
