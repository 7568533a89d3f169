"""The limit of open files that a process starts with."""

import subprocess
import sys

SCRIPT = """
import resource
from evertick.runtime.process import raise_descriptor_limit
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 512))
print(raise_descriptor_limit(), raise_descriptor_limit(), *resource.getrlimit(resource.RLIMIT_NOFILE))
"""


def test_a_process_may_open_as_many_files_as_the_system_allows() -> None:
    said = subprocess.run([sys.executable, "-c", SCRIPT], check=True, capture_output=True, text=True).stdout
    assert said.split() == ["512", "512", "512", "512"]
