import os
import shutil
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).parents[1]
SKIPPING = """
import pytest
from servers.process import missing

@pytest.mark.parametrize("number", [1, 2])
def test_with_a_server(number):
    missing("kafka", "run `make servers`")

def test_elsewhere():
    pytest.skip("not on this system")
"""


STARTING = """
from servers.aws import AwsServer
from servers.nats import NatsServer

def test_with_moto(tmp_path):
    AwsServer(tmp_path)

def test_with_nats(tmp_path):
    NatsServer(tmp_path)
"""


def output_of(code: str, directory: Path, helpers: Path = TESTS, **variables: str) -> str:
    """What pytest prints for tests with this code, which all pass or are skipped."""
    (directory / "test_some.py").write_text(code, encoding="utf-8")
    words = [sys.executable, "-m", "pytest", "-q", "-p", "missing_servers", "--rootdir", str(directory), str(directory)]
    environment = {**os.environ, "PYTHONPATH": str(helpers), "PYTEST_ADDOPTS": "", **variables}
    run = subprocess.run(words, cwd=directory, env=environment, capture_output=True, text=True, check=True)
    return run.stdout


def test_a_run_without_a_server_says_what_it_did_not_test(tmp_path: Path) -> None:
    shown = output_of(SKIPPING, tmp_path)
    assert "NOT TESTED WITH KAFKA: run `make servers` (2 skipped)" in shown
    assert "not on this system" not in shown


def test_a_program_of_the_system_does_not_stand_for_what_make_servers_would_install(tmp_path: Path) -> None:
    """It may have any version."""
    helpers, programs, directory = (tmp_path / name for name in ("checkout/tests", "programs", "new"))
    shutil.copytree(TESTS / "servers", helpers / "servers")
    for name in ("ports.py", "missing_servers.py"):
        shutil.copy(TESTS / name, helpers)
    programs.mkdir()
    for name in ("moto_server", "nats-server"):
        (programs / name).touch(mode=0o755)
    directory.mkdir()
    shown = output_of(STARTING, directory, helpers, PATH=f"{programs}:{os.environ['PATH']}")
    assert "NOT TESTED WITH SQS AND S3: there is no moto_server; run `make servers` (1 skipped)" in shown
    assert "NOT TESTED WITH NATS: there is no nats-server; run `make servers` (1 skipped)" in shown
