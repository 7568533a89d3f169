"""The wheel and the source distribution have all that they need, and nothing else."""

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from deploy.files import ROOT
from evertick.version import __version__

PACKAGE = ROOT / "src" / "evertick"
SECONDS = 120


def build(kind: str, source: Path, into: Path) -> Path:
    command = [sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", str(into)]
    subprocess.run(command, cwd=source, capture_output=True, timeout=SECONDS, check=True)
    (made,) = [path for path in into.iterdir() if path.suffix in {".whl", ".gz"}]
    return made


def names_in(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if ".dist-info/" not in name}


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("sdist", ROOT, tmp_path_factory.mktemp("sdist"))


def test_the_wheel_is_the_package_with_its_sql(tmp_path: Path) -> None:
    found = names_in(build("wheel", ROOT, tmp_path))
    files = (path for path in PACKAGE.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    assert found == {str(path.relative_to(PACKAGE.parent)) for path in files}
    assert {"evertick/py.typed", "evertick/store/migrations/0001_initial.sql", "evertick/store/sql/timers.sql"} <= found


def test_the_source_distribution_makes_the_same_wheel(sdist: Path, tmp_path: Path) -> None:
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path / "source", filter="data")
    unpacked = tmp_path / "source" / f"evertick-{__version__}"
    (tmp_path / "again").mkdir()
    (tmp_path / "direct").mkdir()
    again, direct = build("wheel", unpacked, tmp_path / "again"), build("wheel", ROOT, tmp_path / "direct")
    assert names_in(again) == names_in(direct)


def test_the_source_distribution_has_what_a_packager_needs_and_no_secrets(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"LICENSE", "README.md", "pyproject.toml", "Dockerfile", "compose.yaml", "requirements/server.lock"} <= names
    assert "deploy/systemd/evertick-api.service" in names
    unwanted = (".git/", ".venv/", "deploy/compose/secrets/", ".hypothesis/")
    assert [name for name in names if name.startswith(unwanted) or "__pycache__" in name] == []
