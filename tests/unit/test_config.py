"""Where settings come from, and how all that is wrong with them is told at once."""

import pickle
from pathlib import Path

import pytest

from evertick.config.reading import ConfigInvalid, read_settings
from evertick.config.settings import Settings
from evertick.config.values import Role


def test_without_anything_the_defaults_hold(tmp_path: Path) -> None:
    settings = read_settings({}, tmp_path)
    assert settings == Settings()
    assert (settings.database_url, settings.heartbeat_seconds, settings.history.days) == (None, 0.5, 90)


def test_the_environment_goes_before_the_file(tmp_path: Path) -> None:
    (tmp_path / "evertick.toml").write_text('port = 9000\ndata_dir = "/data"\nlease_seconds = 60\n', encoding="utf-8")
    settings = read_settings({"EVERTICK_PORT": "9001", "EVERTICK_HOST": ""}, tmp_path)
    assert (settings.port, settings.data_dir, settings.lease_time.seconds) == (9001, Path("/data"), 60)
    assert settings.host == "127.0.0.1"


def test_a_file_may_be_named(tmp_path: Path) -> None:
    path = tmp_path / "other.toml"
    path.write_text('database_url = "postgresql://db/evertick"', encoding="utf-8")
    assert read_settings({"EVERTICK_CONFIG": str(path)}, tmp_path).database_url == "postgresql://db/evertick"


def test_every_fault_is_told_and_the_nearest_known_name(tmp_path: Path) -> None:
    (tmp_path / "evertick.toml").write_text('prot = 9000\nhost = ""\ncolour = 3\n', encoding="utf-8")
    environment = {
        "EVERTICK_DATABSE_URL": "postgresql://db/evertick",
        "EVERTICK_PORT": "70000",
        "EVERTICK_HEARTBEAT_SECONDS": "soon",
        "EVERTICK_DATABASE_URL": "mysql://db",
    }
    with pytest.raises(ConfigInvalid) as refused:
        read_settings(environment, tmp_path)
    file = tmp_path / "evertick.toml"
    assert set(refused.value.faults) == {
        f"{file}: prot is not known: did you mean port?",
        f"{file}: colour is not known",
        f"{file}: host: must be a text that is not empty",
        "EVERTICK_DATABSE_URL is not known: did you mean EVERTICK_DATABASE_URL?",
        "EVERTICK_PORT: must be a whole number from 0 to 65535",
        "EVERTICK_HEARTBEAT_SECONDS: must be a number",
        "EVERTICK_DATABASE_URL: must begin with postgresql://",
    }
    assert pickle.loads(pickle.dumps(refused.value)).faults == refused.value.faults


def test_a_password_comes_from_a_file_or_a_command_and_a_command_is_not_shown(tmp_path: Path) -> None:
    command = {"EVERTICK_DATABASE_PASSWORD_COMMAND": "vault read 'hunter2'"}
    settings = read_settings(command, tmp_path)
    assert settings.database_password_command == "vault read 'hunter2'"
    assert "hunter2" not in repr(settings)
    with pytest.raises(ConfigInvalid, match="only one of them can be used"):
        read_settings({**command, "EVERTICK_DATABASE_PASSWORD_FILE": "/run/password"}, tmp_path)
    with pytest.raises(ConfigInvalid, match="must be a command with its arguments"):
        read_settings({"EVERTICK_DATABASE_PASSWORD_COMMAND": "vault 'read"}, tmp_path)


@pytest.mark.parametrize(("value", "factor"), [("1.5", 1.5), ("unlimited", None), (" Unlimited", None)])
def test_a_catch_up_is_a_factor_faster_or_unlimited(value: str, factor: float | None, tmp_path: Path) -> None:
    assert read_settings({"EVERTICK_CATCH_UP_FACTOR": value}, tmp_path).catch_up_factor == factor


@pytest.mark.parametrize("value", ["1", "0", "-2", "nan", "none"])
def test_a_catch_up_that_could_not_go_on_is_refused(value: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigInvalid, match="EVERTICK_CATCH_UP_FACTOR: must be a number"):
        read_settings({"EVERTICK_CATCH_UP_FACTOR": value}, tmp_path)


@pytest.mark.parametrize("value", ["nan", "inf", "-1", "0", "1.5", "many"])
def test_counts_are_whole_and_above_zero(value: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigInvalid, match="EVERTICK_MAX_CONNECTIONS: must be a"):
        read_settings({"EVERTICK_MAX_CONNECTIONS": value}, tmp_path)


@pytest.mark.parametrize("value", ["nan", "inf", "-1", "0"])
def test_times_are_above_zero_and_finite(value: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigInvalid, match="must be a number above 0"):
        read_settings({"EVERTICK_LEASE_SECONDS": value}, tmp_path)


def test_a_timeout_leaves_room_for_heartbeats(tmp_path: Path) -> None:
    with pytest.raises(ConfigInvalid, match="at least twice heartbeat_seconds"):
        read_settings({"EVERTICK_HEARTBEAT_SECONDS": "4"}, tmp_path)


def test_a_file_that_is_missing_or_cannot_be_read_is_a_fault(tmp_path: Path) -> None:
    with pytest.raises(ConfigInvalid, match="there is no file"):
        read_settings({"EVERTICK_CONFIG": str(tmp_path / "none.toml")}, tmp_path)
    (tmp_path / "evertick.toml").write_text("port = ", encoding="utf-8")
    with pytest.raises(ConfigInvalid, match=r"evertick\.toml"):
        read_settings({}, tmp_path)


def test_a_password_in_a_servers_url_is_refused_and_not_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigInvalid, match="EVERTICK_URL: must have no user or password") as refused:
        read_settings({"EVERTICK_URL": "https://user:hunter2@evertick.example.com"}, tmp_path)
    assert "hunter2" not in str(refused.value)


def test_names_that_are_nobodys_slip_are_left_alone(tmp_path: Path) -> None:
    assert read_settings({"EVERTICK_CI_CACHE": "1"}, tmp_path) == Settings()


def test_secrets_do_not_show() -> None:
    shown = repr(Settings(database_url="postgresql://me:hunter2@db:5432/evertick?password=hunter3", api_key="evt_1"))
    assert "postgresql://***@db:5432/evertick" in shown
    assert not any(secret in shown for secret in ("hunter2", "hunter3", "evt_1"))
    assert "hunter2" not in repr(Settings(database_url="postgresql://me:hunter2@[db/evertick"))


def test_metrics_that_other_machines_can_reach_need_a_key_or_a_word(tmp_path: Path) -> None:
    reachable = {"EVERTICK_METRICS_PORT": "9464", "EVERTICK_METRICS_HOST": "0.0.0.0"}
    with pytest.raises(ConfigInvalid, match="metrics_port: set metrics_key, or metrics_open to true"):
        read_settings(reachable, tmp_path)
    key = {"EVERTICK_METRICS_KEY": "sixteen-characters"}
    for more in (key, {"EVERTICK_METRICS_OPEN": "true"}, {"EVERTICK_METRICS_HOST": "::1"}):
        assert read_settings(reachable | more, tmp_path).metrics_port == 9464
    with pytest.raises(ConfigInvalid, match="metrics_port"):
        read_settings({"EVERTICK_METRICS_PORT": "9464", "EVERTICK_METRICS_OPEN": "false"}, tmp_path)
    assert "sixteen" not in repr(read_settings(reachable | key, tmp_path))
    with pytest.raises(ConfigInvalid, match="at least 16"):
        read_settings({"EVERTICK_METRICS_KEY": "short"}, tmp_path)


def test_queues_with_series_of_their_own_are_listed_by_commas(tmp_path: Path) -> None:
    assert read_settings({"EVERTICK_METRICS_QUEUES": "billing, reports"}, tmp_path).metrics_queues == (
        "billing",
        "reports",
    )


def test_the_roles_of_a_process_are_listed_by_commas_or_in_the_file(tmp_path: Path) -> None:
    assert read_settings({"EVERTICK_ROLES": "api, dispatcher"}, tmp_path).roles == (Role.API, Role.DISPATCHER)
    (tmp_path / "evertick.toml").write_text('roles = ["janitor"]', encoding="utf-8")
    assert read_settings({}, tmp_path).roles == (Role.JANITOR,)
    for wrong in ("api,cook", "api,", ","):
        with pytest.raises(ConfigInvalid, match=r"EVERTICK_ROLES.*must be among api, scheduler, janitor, dispatcher"):
            read_settings({"EVERTICK_ROLES": wrong}, tmp_path)


def test_a_secret_may_be_in_a_file_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "url").write_text("postgresql://u:p@db/evertick\n", encoding="utf-8")
    settings = read_settings({"EVERTICK_DATABASE_URL_FILE": str(tmp_path / "url")}, tmp_path)
    assert settings.database_url == "postgresql://u:p@db/evertick"


def test_what_is_wrong_with_files_of_secrets_is_told(tmp_path: Path) -> None:
    (tmp_path / "empty").write_text("\n", encoding="utf-8")
    environment = {
        "EVERTICK_DATABASE_URL": "postgresql://db/evertick",
        "EVERTICK_DATABASE_URL_FILE": str(tmp_path / "empty"),
        "EVERTICK_API_KEY_FILE": str(tmp_path / "empty"),
        "EVERTICK_SECRET_KEY_FILE": str(tmp_path / "missing"),
        "EVERTICK_PORT_FILE": str(tmp_path / "empty"),
    }
    with pytest.raises(ConfigInvalid) as refused:
        read_settings(environment, tmp_path)
    assert sorted(refused.value.faults) == [
        f"EVERTICK_API_KEY_FILE: {tmp_path / 'empty'} is empty",
        "EVERTICK_DATABASE_URL_FILE: EVERTICK_DATABASE_URL is set too: use one of them",
        "EVERTICK_PORT_FILE is not known: did you mean EVERTICK_PORT?",
        f"EVERTICK_SECRET_KEY_FILE: [Errno 2] No such file or directory: '{tmp_path / 'missing'}'",
    ]


@pytest.mark.parametrize("name", ["ENV", "HOME", "TEAM", "VERSION", "FOO", "PORT_8700_TCP_ADDR"])
def test_a_variable_of_another_program_that_uses_the_prefix_is_left_alone(name: str, tmp_path: Path) -> None:
    assert read_settings({f"EVERTICK_{name}": "x"}, tmp_path) == read_settings({}, tmp_path)


def test_what_kubernetes_tells_pods_of_a_service_named_evertick_is_no_setting(tmp_path: Path) -> None:
    told = {
        "SERVICE_HOST": "10.0.0.1",
        "SERVICE_PORT": "8700",
        "SERVICE_PORT_HTTP": "8700",
        "PORT": "tcp://10.0.0.1:8700",
        "PORT_8700_TCP": "tcp://10.0.0.1:8700",
        "PORT_8700_TCP_PROTO": "tcp",
        "METRICS_SERVICE_HOST": "10.0.0.2",
        "METRICS_SERVICE_PORT": "9464",
        "METRICS_PORT": "tcp://10.0.0.2:9464",
    }
    assert read_settings({f"EVERTICK_{name}": value for name, value in told.items()}, tmp_path) == Settings()
    with pytest.raises(ConfigInvalid, match="EVERTICK_PORT: must be a number"):
        read_settings({"EVERTICK_PORT": "http://10.0.0.1:8700"}, tmp_path)


@pytest.mark.parametrize(("given", "missing"), [("tls_cert", "tls_key"), ("tls_key", "tls_cert")])
def test_tls_needs_a_certificate_and_its_key(given: str, missing: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigInvalid, match=f"{missing}: is missing, and {given} is given: TLS needs both files"):
        read_settings({f"EVERTICK_{given.upper()}": "/etc/evertick/file"}, tmp_path)
