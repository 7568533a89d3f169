"""The examples in README and docs are run: what they show is what happens."""

import doctest
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_example_on_the_page_is_true(page: Path) -> None:
    result = doctest.testfile(str(page), module_relative=False, encoding="utf-8")
    assert result.failed == 0


def test_the_pages_that_promise_examples_have_some() -> None:
    parser = doctest.DocTestParser()
    for name in ("README.md", "docs/schedules.md"):
        assert parser.get_examples((ROOT / name).read_text(encoding="utf-8"))
