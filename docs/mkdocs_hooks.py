"""What MkDocs does not do by itself: pages and files of the repository beside `docs/`, and lists of whole directories.

Links on our pages are those of the repository, so that they also work there. A link that leaves `docs/` leads to a copy
in the site, at the path that the file has in the repository.
"""  # noqa: INP001  (MkDocs loads it by its path)

import os
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
LINK = re.compile(r"(\]\()(?!https?:|mailto:|#)([^)#\s]+)")
PROJECT_PAGES = ("ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md")


def on_config(config: Any) -> Any:
    config.nav = [_expanded(entry) for entry in config.nav]
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add what our pages link to, and what those pages link to."""
    waiting = [DOCS / file.src_uri for file in files.documentation_pages()] + [ROOT / page for page in PROJECT_PAGES]
    seen: set[Path] = set()
    while waiting:
        source = waiting.pop().resolve()
        if source in seen:
            continue
        seen.add(source)
        if not source.is_relative_to(DOCS):
            files.append(File.generated(config, _site_path(source), abs_src_path=str(source)))
        if source.suffix == ".md":
            waiting += [path for path in _linked(source) if not path.is_relative_to(DOCS)]
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    source = Path(page.file.abs_src_path)

    def site_link(found: re.Match[str]) -> str:
        path = _target(source, found[2])
        if not path.is_file():
            return found[0]  # MkDocs says that it is missing
        return found[1] + os.path.relpath(_site_path(path), Path(page.file.src_uri).parent)

    return LINK.sub(site_link, markdown)


def _expanded(entry: Any) -> Any:
    """An entry of the navigation, with the pages of a directory in place of its name."""
    if isinstance(entry, dict):
        return {title: _expanded(below) for title, below in entry.items()}
    if isinstance(entry, list):
        return [_expanded(each) for each in entry]
    if entry.endswith("/"):
        return sorted(str(path.relative_to(DOCS)) for path in (DOCS / entry).glob("*.md"))
    return entry


def _linked(page: Path) -> list[Path]:
    """Files that a page links to."""
    links = (_target(page, link) for _, link in LINK.findall(page.read_text(encoding="utf-8")))
    return [path for path in links if path.is_file()]


def _target(page: Path, link: str) -> Path:
    return Path(os.path.normpath(page.parent / link))


def _site_path(path: Path) -> str:
    return str(path.relative_to(DOCS if path.is_relative_to(DOCS) else ROOT))
