"""The site of the documentation: it builds without a warning, and loads nothing from other servers."""

import os
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MKDOCS = ROOT / ".venv-docs" / "bin" / "mkdocs"
LOADED = re.compile(r"<(?:script|link|img|iframe|source)\b[^>]*\b(?:src|href)=[\"']?(https?:)?//", re.IGNORECASE)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not MKDOCS.exists():
        pytest.skip("MkDocs is not installed, so the site is not tested: run `make docs`")
    folder = tmp_path_factory.mktemp("site")
    command = [str(MKDOCS), "build", "--quiet", "--strict", "--site-dir", str(folder)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    built = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    return folder


def test_every_page_is_in_the_site(site: Path) -> None:
    """A link that leads nowhere, or a page without a place in the navigation, fails the build."""
    pages = [page.relative_to(ROOT / "docs") for page in (ROOT / "docs").rglob("*.md")]
    names = [page.with_name("index.md") if page.name == "README.md" else page for page in pages]
    assert [str(name) for name in names if not (site / name.with_suffix(".html")).exists()] == []


def test_no_page_loads_anything_from_another_server(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert pages
    assert [page.name for page in pages if LOADED.search(page.read_text(encoding="utf-8"))] == []


def test_links_to_files_of_the_repository_lead_to_copies(site: Path) -> None:
    assert (site / "examples" / "quickstart.py").is_file()
    assert 'href="examples/quickstart.py"' in (site / "quickstart.html").read_text(encoding="utf-8")
