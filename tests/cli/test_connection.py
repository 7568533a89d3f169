"""Which server or database a command uses, with which key, and its errors."""

from pathlib import Path

import pytest

from cli.commands import Cli

UNUSED_URL = "http://127.0.0.1:1"
LIST = ("jobs", "list")


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory of commands: no config file, and no settings from the environment."""
    for name in ("URL", "API_KEY", "PROFILE", "CONFIG", "DATABASE_URL", "DATA_DIR"):
        monkeypatch.delenv(f"EVERTICK_{name}", raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def server_of(cli: Cli) -> tuple[str, str]:
    return cli.options[1], cli.environment["EVERTICK_API_KEY"]


def with_profile(directory: Path, url: str, key: str) -> None:
    text = f'[profiles.staging]\nurl = "{UNUSED_URL}"\n[profiles.local]\nurl = "{url}"\napi_key = "{key}"\n'
    (directory / "evertick.toml").write_text(text, encoding="utf-8")


async def test_the_environment_may_name_the_server(over_api: Cli) -> None:
    url, key = server_of(over_api)
    await over_api("jobs", "add", "refresh", "@daily", "--handler", "h")
    assert "refresh" in await Cli.at(EVERTICK_URL=url, EVERTICK_API_KEY=key)(*LIST)


async def test_a_database_on_the_command_line_goes_before_a_server_elsewhere(on_database: Cli) -> None:
    assert await Cli.at(*on_database.options, EVERTICK_URL=UNUSED_URL, EVERTICK_API_KEY="evt_x")(*LIST) == "No jobs.\n"


async def test_a_key_may_be_in_a_file(over_api: Cli, directory: Path) -> None:
    url, key = server_of(over_api)
    (directory / "key").write_text(f"{key}\n", encoding="utf-8")
    there = Cli.at("--url", url, "--api-key-file", "key", EVERTICK_API_KEY="evt_other")
    assert await there(*LIST) == "No jobs.\n"
    (directory / "key").write_text("\n", encoding="utf-8")
    assert "is empty" in await there(*LIST, code=2)
    (directory / "key").unlink()
    assert "--api-key-file key" in await there(*LIST, code=2)


async def test_a_profile_names_a_server_and_its_key(over_api: Cli, directory: Path) -> None:
    with_profile(directory, *server_of(over_api))
    assert await Cli.at("--profile", "local")(*LIST) == "No jobs.\n"
    assert await Cli.at(EVERTICK_PROFILE="local", EVERTICK_URL=UNUSED_URL)(*LIST) == "No jobs.\n"
    (directory / "key").write_text("evt_x", encoding="utf-8")
    assert "no answer from" in await Cli.at("--profile", "staging", "--api-key-file", "key")(*LIST, code=3)


async def test_a_key_for_one_server_does_not_go_to_another(directory: Path) -> None:
    # Nothing listens at these URLs: a command that sent the key would exit with code 3.
    with_profile(directory, UNUSED_URL, "evt_local")
    said = await Cli.at("--profile", "staging", EVERTICK_API_KEY="evt_x")(*LIST, code=2)
    assert "profiles.staging.api_key is missing" in said
    elsewhere = {"EVERTICK_URL": "http://127.0.0.1:2", "EVERTICK_API_KEY": "evt_x"}
    assert "api_key: is missing" in await Cli.at("--url", UNUSED_URL, **elsewhere)(*LIST, code=2)
    await Cli.at("--url", UNUSED_URL, EVERTICK_URL=f"{UNUSED_URL}/", EVERTICK_API_KEY="evt_x")(*LIST, code=3)
    (directory / "evertick.toml").write_text('url = "http://127.0.0.1:2"\napi_key = "evt_file"\n', encoding="utf-8")
    assert "api_key: is missing" in await Cli.at("--url", UNUSED_URL)(*LIST, code=2)
    assert "api_key: is missing" in await Cli.at(EVERTICK_URL=UNUSED_URL)(*LIST, code=2)
    assert "127.0.0.1:2" in await Cli.at()(*LIST, code=3)


async def test_a_profile_that_is_not_there_is_wrong_usage(directory: Path) -> None:
    assert "there is no profile 'odd': it has none" in await Cli.at("--profile", "odd")(*LIST, code=2)
    with_profile(directory, UNUSED_URL, "evt_x")
    assert "it has staging, local" in await Cli.at("--profile", "odd")(*LIST, code=2)


async def test_all_faults_of_profiles_are_reported(directory: Path) -> None:
    (directory / "evertick.toml").write_text('[profiles.a]\nurl = ""\nkey = "x"\n[profiles.b]\n', encoding="utf-8")
    said = await Cli.at("--profile", "a")(*LIST, code=2)
    assert "profiles.a.key is not known" in said
    assert "profiles.a.url: must be a non-empty string" in said
    assert "profiles.b.url is missing" in said


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--url", UNUSED_URL, "--profile", "a"), "--url and --profile exclude each other"),
        (("--url", UNUSED_URL, "--database-url", "postgresql://127.0.0.1:1/x"), "exclude each other"),
        (("--url", UNUSED_URL, "--api-key-file", "key", "--tenant", "other"), "--tenant needs a database"),
        (("--url", UNUSED_URL), "Error: api_key: is missing"),
        (("--url", "127.0.0.1:8700", "--api-key-file", "key"), "Error: url: must start with http"),
    ],
)
async def test_contradicting_options_are_wrong_usage(directory: Path, options: tuple[str, ...], words: str) -> None:
    (directory / "key").write_text("evt_x", encoding="utf-8")
    said = await Cli.at(*options)(*LIST, code=2)
    assert words in said


async def test_a_server_that_does_not_answer_is_reported_in_one_line() -> None:
    said = await Cli.at("--url", UNUSED_URL, EVERTICK_API_KEY="evt_secret")(*LIST, code=3)
    assert said.startswith(f"Error: no answer from {UNUSED_URL}")
    assert "evt_secret" not in said
    assert said.count("\n") == 1


async def test_an_unknown_key_is_reported(over_api: Cli) -> None:
    url, _ = server_of(over_api)
    said = await Cli.at("--url", url, EVERTICK_API_KEY="evt_unknown")(*LIST, code=1)
    assert said.startswith("Error: ")
    assert "evt_unknown" not in said


async def test_a_tenant_that_is_not_there_is_wrong_usage(on_database: Cli) -> None:
    said = await on_database("jobs", "list", "--tenant", "nobody", code=2)
    assert said == "Error: tenant: there is none called 'nobody'\n"
