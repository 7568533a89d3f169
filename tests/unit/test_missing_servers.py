import os
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


def test_a_run_without_a_server_says_what_it_did_not_test(tmp_path: Path) -> None:
    (tmp_path / "test_some.py").write_text(SKIPPING, encoding="utf-8")
    words = [sys.executable, "-m", "pytest", "-q", "-p", "missing_servers", "--rootdir", str(tmp_path), str(tmp_path)]
    variables = {**os.environ, "PYTHONPATH": str(TESTS), "PYTEST_ADDOPTS": ""}
    run = subprocess.run(words, cwd=tmp_path, env=variables, capture_output=True, text=True, check=True)
    assert "NOT TESTED WITH KAFKA: run `make servers` (2 skipped)" in run.stdout
    assert "not on this system" not in run.stdout
