"""The rules, their runbooks and the dashboard fit the metrics, each other, and a real Prometheus."""

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from engine import until
from evertick.metrics.catalog import ALL, DATABASE_UP, PROCESS
from evertick.metrics.exposition import page
from evertick.metrics.instruments import Histogram
from faults.cluster import Cluster
from faults.processes import Process
from prometheus_server import prometheus, tool

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy" / "prometheus"
RULES = FOLDER / "evertick.rules.yml"
TESTS = sorted(FOLDER.glob("*.test.yml"))
DASHBOARD = ROOT / "deploy" / "grafana" / "evertick.json"
SUMMED = re.compile(r"\bsum(?: by \([^)]*\))? ?\(([a-z_]+)")
NAME = re.compile(r"\b(?:evertick|process)[_:][a-z0-9_:]+")


def rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]
    return [rule for group in groups for rule in group["rules"]]


ALERTS = {rule["alert"]: rule for rule in rules() if "alert" in rule}


def names() -> set[str]:
    """Every name that a series can have."""
    found = set(PROCESS) | {rule["record"] for rule in rules() if "record" in rule}
    for each in ALL:
        suffixes = ("_bucket", "_sum", "_count") if isinstance(each, Histogram) else ("",)
        found |= {each.name + suffix for suffix in suffixes}
    return found


def panels() -> Iterator[dict[str, Any]]:
    yield from json.loads(DASHBOARD.read_text(encoding="utf-8"))["panels"]


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule.get("alert") or rule["record"])
def test_a_rule_names_metrics_that_there_are(rule: dict[str, Any]) -> None:
    named = set(NAME.findall(rule["expr"]))
    assert named
    assert named <= names()


def test_the_dashboard_names_metrics_that_there_are() -> None:
    shown = [target["expr"] for panel in panels() for target in panel.get("targets", ())]
    assert len(shown) > 30
    assert {name for expression in shown for name in NAME.findall(expression)} <= names()


def test_figures_of_the_cluster_which_all_processes_show_are_not_added_up() -> None:
    of_cluster = {each.name for each in ALL[ALL.index(DATABASE_UP) :]}
    shown = [target["expr"] for panel in panels() for target in panel.get("targets", ())]
    summed = {
        name for expression in (*shown, *(rule["expr"] for rule in rules())) for name in SUMMED.findall(expression)
    }
    assert "evertick_pending_timers" in summed
    assert not summed & of_cluster


def test_the_panels_of_the_dashboard_have_numbers_and_places_of_their_own() -> None:
    shown = list(panels())
    assert len({panel["id"] for panel in shown}) == len(shown)
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in shown]
    assert len(set(places)) == len(places)
    assert all(panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24 for panel in shown)
    assert all(panel["description"] for panel in shown if panel["type"] != "row")


@pytest.mark.parametrize("alert", ALERTS)
def test_an_alert_has_a_severity_and_a_runbook(alert: str) -> None:
    rule = ALERTS[alert]
    assert rule["labels"]["severity"] in {"page", "ticket"}
    runbook = ROOT / rule["annotations"]["runbook"]
    text = runbook.read_text(encoding="utf-8")
    assert text.startswith(f"# {alert}\n")
    assert "\n## Look at\n" in text
    assert "\n## Do\n" in text
    index = (ROOT / "docs" / "runbooks" / "README.md").read_text(encoding="utf-8")
    assert f"| [{alert}]({runbook.name}) | {rule['labels']['severity']} |" in index


def test_runbooks_name_metrics_that_there_are() -> None:
    bases = {each.name for each in ALL} | names()
    for runbook in (ROOT / "docs" / "runbooks").glob("*.md"):
        named = set(NAME.findall(runbook.read_text(encoding="utf-8")))
        assert named <= bases, runbook.name


@pytest.mark.parametrize("alert", ALERTS)
def test_an_alert_has_a_case_in_which_it_fires_and_one_in_which_it_does_not(alert: str) -> None:
    cases = [
        check
        for file in TESTS
        for test in yaml.safe_load(file.read_text(encoding="utf-8"))["tests"]
        for check in test["alert_rule_test"]
        if check["alertname"] == alert
    ]
    assert {bool(check["exp_alerts"]) for check in cases} == {True, False}


def promtool(*arguments: str, text: bytes | None = None) -> None:
    done = subprocess.run([tool("promtool"), *arguments], input=text, capture_output=True, timeout=300, check=False)
    assert done.returncode == 0, (done.stdout + done.stderr).decode()


def test_promtool_reads_the_rules() -> None:
    promtool("check", "rules", str(RULES))


def test_the_alerts_fire_when_they_should_and_only_then() -> None:
    promtool("test", "rules", *map(str, TESTS))


def test_promtool_finds_nothing_wrong_with_the_page() -> None:
    promtool("check", "metrics", text=page({}))


async def test_a_real_prometheus_scrapes_a_cluster_and_evaluates_the_rules(database_url: str, tmp_path: Path) -> None:
    tool("prometheus")
    cluster = Cluster(database_url, tmp_path, {"EVERTICK_METRICS_PORT": "0"})
    await cluster.open()
    try:
        processes = [cluster.scheduler(), cluster.worker(), cluster.api()]
        await cluster.jobs(3, schedule="every 1s")
        async with prometheus(tmp_path, [_target(process) for process in processes], RULES) as server:

            async def has_all() -> bool:
                figures = {
                    'sum(up{job="evertick"})': 3,
                    "max(evertick_nodes)": 1,
                    "sum(evertick_partitions_held)": 256,
                }
                found = {query: await server.value(query) for query in figures}
                recorded = ("evertick:fired:rate1m > 0", "evertick:lag_seconds:p999_rate5m >= 0")
                return found == figures and None not in [await server.value(query) for query in recorded]

            await until(has_all)

            async def are_evaluated() -> bool:
                groups = (await server.get("rules"))["groups"]
                return {rule["health"] for group in groups for rule in group["rules"]} == {"ok"}

            await until(are_evaluated)
            processes[0].terminate()

            async def is_pending() -> bool:
                return bool(await server.value('ALERTS{alertname="EvertickNoScheduler"}'))

            await until(is_pending)
    finally:
        await cluster.close()


def _target(process: Process) -> str:
    found = re.search(r"metrics are at http://(\S+)/metrics", process.log.read_text(encoding="utf-8"))
    assert found is not None
    return found[1]
