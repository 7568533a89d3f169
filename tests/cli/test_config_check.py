import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from evertick.cli.main import app

CHECK = ["config", "check"]


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("EVERTICK_CONFIG", raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_valid_settings_exit_with_zero() -> None:
    result = CliRunner().invoke(app, CHECK)
    assert (result.exit_code, result.stdout) == (0, "The settings are valid.\n")
    assert json.loads(CliRunner().invoke(app, [*CHECK, "--json"]).stdout) == {"faults": []}


def test_all_faults_are_reported_at_once(directory: Path) -> None:
    text = 'prot = 1\nhost = ""\n[profiles.a]\nkey = "x"\n'
    (directory / "evertick.toml").write_text(text, encoding="utf-8")
    environment = {"EVERTICK_LEASE_SECONDS": "soon"}
    result = CliRunner().invoke(app, CHECK, env=environment)
    assert result.exit_code == 2
    for words in ("prot is not known: did you mean port?", "host: must", "EVERTICK_LEASE_SECONDS: must be a number"):
        assert words in result.stderr
    assert "profiles.a.url is missing" in result.stderr
    again = CliRunner().invoke(app, [*CHECK, "--json"], env=environment)
    assert again.exit_code == 2
    assert len(json.loads(again.stdout)["faults"]) >= 4


def test_a_file_that_is_not_toml_is_reported_once(directory: Path) -> None:
    (directory / "evertick.toml").write_text("= 3", encoding="utf-8")
    result = CliRunner().invoke(app, CHECK)
    assert result.exit_code == 2
    assert result.stderr.count("Error: ") == 1


def test_shell_completion_knows_the_commands() -> None:
    found = CliRunner().invoke(
        app,
        [],
        env={"_EVERTICK_COMPLETE": "bash_complete", "COMP_WORDS": "evertick dead", "COMP_CWORD": "1"},
        prog_name="evertick",
    )
    assert found.stdout.strip() == "plain,dead-letters"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_script_for_the_shell_calls_the_completion(shell: str) -> None:
    script = CliRunner().invoke(app, ["completion", shell], prog_name="evertick").stdout
    assert f"_EVERTICK_COMPLETE={shell}_complete" in script
