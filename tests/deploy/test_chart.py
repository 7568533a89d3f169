"""The Helm chart: it renders what was asked for and refuses what is wrong; its commands and settings are real."""

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]  # comes with a test tool

from deploy.files import DEPLOY, parse, unknown_settings
from evertick.version import __version__

CHART = DEPLOY / "helm" / "evertick"
BESIDE = Path(sys.executable).parent / "helm"
HELM = str(BESIDE) if BESIDE.exists() else shutil.which("helm")
needs_helm = pytest.mark.skipif(HELM is None, reason="NOT TESTED: no helm; `make helm` builds it")

SECRETS = {
    "database.existingSecret": "database",
    "secretKey.existingSecret": "sealing",
    "metrics.existingSecret": "metrics",
}
ROLES = ("api", "scheduler", "dispatcher")


def helm(*arguments: str, **values: str) -> "subprocess.CompletedProcess[str]":
    assert HELM is not None
    options = [f"--set={name}={value}" for name, value in values.items()]
    return subprocess.run([HELM, *arguments, *options], capture_output=True, text=True, timeout=120, check=False)


def render(**values: str) -> dict[tuple[str, str], dict[str, Any]]:
    """The rendered objects, by kind and name."""
    done = helm("template", "prod", str(CHART), "--kube-version=1.30.0", **{**SECRETS, **values})
    assert done.returncode == 0, done.stderr
    objects = [each for each in yaml.safe_load_all(done.stdout) if each]
    return {(each["kind"], each["metadata"]["name"]): each for each in objects}


def refusal(**values: str) -> str:
    done = helm("template", "prod", str(CHART), "--kube-version=1.30.0", **values)
    assert done.returncode != 0
    return done.stderr


def pod_of(found: dict[str, Any]) -> dict[str, Any]:
    pod: dict[str, Any] = found["spec"]["template"]["spec"]
    return pod


def test_the_chart_has_the_version_of_the_package() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    assert chart["appVersion"] == __version__


@needs_helm
def test_helm_finds_no_fault() -> None:
    done = helm("lint", "--strict", "--kube-version=1.30.0", str(CHART), **SECRETS)
    assert done.returncode == 0, done.stdout + done.stderr


@needs_helm
def test_each_role_has_a_deployment_and_a_disruption_budget() -> None:
    objects = render()
    assert sorted(objects) == [
        *(("Deployment", f"prod-evertick-{role}") for role in sorted(ROLES)),
        ("Job", "prod-evertick-migration"),
        *(("PodDisruptionBudget", f"prod-evertick-{role}") for role in sorted(ROLES)),
        ("Service", "prod-evertick"),
    ]
    replicas = {role: objects["Deployment", f"prod-evertick-{role}"]["spec"]["replicas"] for role in ROLES}
    assert replicas == {"api": 2, "scheduler": 3, "dispatcher": 2}
    for role in ROLES:
        deployment = objects["Deployment", f"prod-evertick-{role}"]["spec"]
        labels = deployment["template"]["metadata"]["labels"]
        budget = objects["PodDisruptionBudget", f"prod-evertick-{role}"]["spec"]
        for selector in (deployment["selector"]["matchLabels"], budget["selector"]["matchLabels"]):
            assert selector.items() <= labels.items()
            assert selector["app.kubernetes.io/component"] == role
    selector = objects["Service", "prod-evertick"]["spec"]["selector"]
    assert (
        selector.items() <= objects["Deployment", "prod-evertick-api"]["spec"]["template"]["metadata"]["labels"].items()
    )


@needs_helm
def test_pods_run_as_nobody_with_real_commands_and_settings() -> None:
    for (kind, _), found in render(**{"settings.EVERTICK_HISTORY_DAYS": "30"}).items():
        if kind not in {"Deployment", "Job"}:
            continue
        pod = pod_of(found)
        (container,) = pod["containers"]
        parse(container["args"])
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["automountServiceAccountToken"] is False
        assert pod["enableServiceLinks"] is False, "a service called evertick would set EVERTICK_PORT"
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert container["image"] == f"evertick:{__version__}"
        variables = {each["name"]: each for each in container["env"]}
        assert unknown_settings(variables) == []
        assert variables["EVERTICK_DATABASE_URL"]["valueFrom"]["secretKeyRef"]["name"] == "database"
        assert variables["EVERTICK_HISTORY_DAYS"]["value"] == "30"
        mounts = {mount["name"] for mount in container["volumeMounts"]}
        assert mounts == {volume["name"] for volume in pod["volumes"]}


@needs_helm
@pytest.mark.parametrize(
    ("values", "wanted"),
    [
        ({}, {"EVERTICK_METRICS_KEY"}),
        ({"metrics.existingSecret": "", "metrics.open": "true"}, {"EVERTICK_METRICS_OPEN"}),
        ({"metrics.existingSecret": "", "metrics.enabled": "false"}, set()),
    ],
)
def test_metrics_need_a_key_unless_they_are_said_to_be_open(values: dict[str, str], wanted: set[str]) -> None:
    objects = render(**values)
    for role in ROLES:
        (container,) = pod_of(objects["Deployment", f"prod-evertick-{role}"])["containers"]
        names = {each["name"] for each in container["env"]}
        assert names & {"EVERTICK_METRICS_KEY", "EVERTICK_METRICS_OPEN"} == wanted
        assert ("EVERTICK_METRICS_PORT" in names) == bool(wanted)


@needs_helm
@pytest.mark.parametrize(("secret", "scheme"), [("", "HTTP"), ("certificate", "HTTPS")])
def test_probes_ask_what_the_process_answers(secret: str, scheme: str) -> None:
    objects = render(**{"api.tls.existingSecret": secret})
    (api,) = pod_of(objects["Deployment", "prod-evertick-api"])["containers"]
    paths = {name: api[f"{name}Probe"]["httpGet"] for name in ("startup", "liveness", "readiness")}
    assert {name: (probe["path"], probe["scheme"]) for name, probe in paths.items()} == {
        "startup": ("/livez", scheme),
        "liveness": ("/livez", scheme),
        "readiness": ("/readyz", scheme),
    }
    assert ("EVERTICK_TLS_CERT" in {each["name"] for each in api["env"]}) == bool(secret)
    for role in ("scheduler", "dispatcher"):
        (container,) = pod_of(objects["Deployment", f"prod-evertick-{role}"])["containers"]
        for name in ("startupProbe", "livenessProbe"):
            program, *check = container[name]["exec"]["command"]
            assert (program, parse(check)) == ("evertick", "health")


@needs_helm
def test_migrations_run_before_new_processes_and_may_go_around_a_pooler() -> None:
    migration = render(**{"database.migrationUrlKey": "direct-url"})["Job", "prod-evertick-migration"]
    assert migration["metadata"]["annotations"]["helm.sh/hook"] == "pre-install,pre-upgrade"
    (container,) = pod_of(migration)["containers"]
    assert container["args"] == ["migrate"]
    (url,) = [each for each in container["env"] if each["name"] == "EVERTICK_DATABASE_URL"]
    assert url["valueFrom"]["secretKeyRef"]["key"] == "direct-url"


@needs_helm
def test_dispatchers_follow_the_webhooks_that_wait() -> None:
    objects = render(**{"dispatcher.autoscaling.enabled": "true"})
    scaler = objects["HorizontalPodAutoscaler", "prod-evertick-dispatcher"]["spec"]
    assert scaler["scaleTargetRef"]["name"] == "prod-evertick-dispatcher"
    (metric,) = scaler["metrics"]
    assert metric["external"]["metric"]["name"] == "evertick_ready_attempts"
    assert metric["external"]["target"] == {"type": "AverageValue", "averageValue": "200"}
    assert "replicas" not in objects["Deployment", "prod-evertick-dispatcher"]["spec"], "the autoscaler sets it"


@needs_helm
def test_what_is_wrong_is_refused_with_what_to_set() -> None:
    assert "database.existingSecret: name a secret" in refusal(**{"secretKey.existingSecret": "s"})
    assert "secretKey.existingSecret: name a secret" in refusal(**{"database.existingSecret": "s"})
    assert "metrics.existingSecret: name a secret" in refusal(**{**SECRETS, "metrics.existingSecret": ""})
    assert "replicas" in refusal(**SECRETS, **{"api.replicas": "0"})
    assert "replica" in refusal(**SECRETS, **{"api.replica": "3"})
    assert "settings" in refusal(**SECRETS, **{"settings.HISTORY_DAYS": "3"})
    assert "tag" in refusal(**SECRETS, **{"image.tag": "latest"})
