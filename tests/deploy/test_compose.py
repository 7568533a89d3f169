"""The compose file: its commands, settings, files and secrets are there, and nothing is open to other machines."""

import configparser
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]  # comes with a test tool

from deploy.files import DEPLOY, ROOT, is_pinned, parse, unknown_settings

FILE: dict[str, Any] = yaml.safe_load((ROOT / "compose.yaml").read_text(encoding="utf-8"))
SERVICES: dict[str, dict[str, Any]] = FILE["services"]
OURS = {name: service for name, service in SERVICES.items() if "build" in service}


def test_the_cluster_has_the_processes_of_a_production() -> None:
    replicas = {name: service.get("deploy", {}).get("replicas", 1) for name, service in SERVICES.items()}
    wanted = {"scheduler": 3, "dispatcher": 2, "api": 2, "worker": 2}
    once = dict.fromkeys(["postgres", "pgbouncer", "migrate", "prometheus", "grafana"], 1)
    assert replicas == wanted | once


@pytest.mark.parametrize("name", OURS)
def test_a_command_is_one_of_ours(name: str) -> None:
    parse(OURS[name]["command"])


def test_the_example_of_a_worker_exists() -> None:
    _, where = OURS["worker"]["command"]
    assert OURS["worker"]["volumes"] == ["./examples:/app:ro"]
    assert (ROOT / "examples" / f"{where.partition(':')[0]}.py").exists()


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_is_pinned_checked_and_started_again(name: str) -> None:
    service = SERVICES[name]
    assert is_pinned(service["image"].replace("${EVERTICK_VERSION:-local}", "local"))
    is_once = name == "migrate"
    assert service["restart"] == ("on-failure" if is_once else "unless-stopped")
    # Our image has a health check of its own.
    assert "healthcheck" in service or name in OURS
    assert unknown_settings(service.get("environment", {})) == []


@pytest.mark.parametrize("name", [name for name in SERVICES if name != "postgres"])
def test_a_service_can_write_nowhere_and_has_no_privileges(name: str) -> None:
    service = SERVICES[name]
    assert (service["read_only"], service["cap_drop"]) == (True, ["ALL"])


def test_only_this_machine_reaches_the_ports() -> None:
    ports = [port for service in SERVICES.values() for port in service.get("ports", [])]
    assert ports
    assert all(port.startswith("127.0.0.1:") for port in ports)


def test_services_wait_for_services_that_exist() -> None:
    for service in SERVICES.values():
        for name, condition in service.get("depends_on", {}).items():
            awaited = SERVICES[name]
            is_once = condition["condition"] == "service_completed_successfully"
            assert is_once == (name == "migrate")
            assert is_once or "healthcheck" in awaited


def test_every_file_that_is_mounted_exists() -> None:
    volumes = [volume for service in SERVICES.values() for volume in service.get("volumes", [])]
    sources = [volume.partition(":")[0] for volume in volumes]
    assert [source for source in sources if source.startswith(".") and not (ROOT / source).exists()] == []
    assert {source for source in sources if not source.startswith(".")} == set(FILE["volumes"])


def test_the_script_makes_every_secret_once(tmp_path: Path) -> None:
    script = shutil.copy(DEPLOY / "compose" / "secrets.sh", tmp_path)

    def made() -> dict[str, str]:
        subprocess.run([script], check=True)
        return {path.name: path.read_text(encoding="utf-8").strip() for path in (tmp_path / "secrets").iterdir()}

    secrets = made()
    assert {Path(each["file"]).name for each in FILE["secrets"].values()} == secrets.keys()
    assert all(Path(each["file"]).parent == Path("deploy/compose/secrets") for each in FILE["secrets"].values())
    used = {name for service in SERVICES.values() for name in service.get("secrets", [])}
    assert used == FILE["secrets"].keys()
    password = secrets["postgres_password"]
    assert len(password) == len(secrets["secret_key"]) == 64
    assert secrets["database_url"] == f"postgresql://evertick:{password}@pgbouncer:6432/evertick"
    assert secrets["pgbouncer_users"] == f'"evertick" "{password}"'
    assert (tmp_path / "secrets").stat().st_mode & 0o077 == 0
    assert made() == secrets, "a second time changes nothing"


def test_the_pooler_is_where_the_urls_say() -> None:
    pooler = configparser.ConfigParser()
    pooler.read(DEPLOY / "compose" / "pgbouncer.ini", encoding="utf-8")
    settings = pooler["pgbouncer"]
    assert (settings["listen_port"], settings["pool_mode"]) == ("6432", "transaction")
    assert settings["auth_file"] == f"/run/secrets/{SERVICES['pgbouncer']['secrets'][0]}"
    assert pooler["databases"]["evertick"].split()[0] == "host=postgres"


def test_prometheus_scrapes_a_service_on_its_port() -> None:
    config = yaml.safe_load((DEPLOY / "compose" / "prometheus.yml").read_text(encoding="utf-8"))
    (found,) = config["scrape_configs"][0]["dns_sd_configs"]
    assert set(found["names"]) <= SERVICES.keys()
    for name in found["names"]:
        assert OURS[name]["environment"]["EVERTICK_METRICS_PORT"] == str(found["port"])


def test_secrets_are_in_no_commit() -> None:
    assert "deploy/compose/secrets/" in (ROOT / ".gitignore").read_text(encoding="utf-8").splitlines()


def test_docker_can_read_it() -> None:
    docker = shutil.which("docker")
    has_compose = docker and subprocess.run([docker, "compose", "version"], capture_output=True, check=False)
    if not docker or not has_compose or has_compose.returncode:
        pytest.skip("NOT TESTED: no docker compose")
    done = subprocess.run(
        [docker, "compose", "config", "--quiet"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
