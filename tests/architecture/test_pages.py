"""The pages for people: decisions are numbered, links and names of modules lead to what is there, settings are told."""

import re
from dataclasses import fields
from pathlib import Path

import pytest

from evertick.config.reading import PREFIX
from evertick.config.settings import Settings
from evertick.domain.limits import QuotaName

ROOT = Path(__file__).parents[2]
DECISIONS = sorted((ROOT / "docs" / "decisions").glob("*.md"))
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md")]
SETTING = re.compile(r"^\| `(EVERTICK_\w+)` \| (\S+) \|", re.MULTILINE)
LINK = re.compile(r"\]\((?!https?:)([^)#\s]+)")
LAYERS = sorted(path.name for path in (ROOT / "src" / "evertick").iterdir() if path.is_dir())
MODULE = re.compile(rf"`((?:{'|'.join(LAYERS)})/[\w/.]+?)/?`")


def test_decisions_are_numbered_one_after_the_other() -> None:
    assert [int(page.name[:4]) for page in DECISIONS] == list(range(1, len(DECISIONS) + 1))


@pytest.mark.parametrize("page", DECISIONS, ids=lambda page: page.name)
def test_a_decision_has_the_number_of_its_file(page: Path) -> None:
    assert page.read_text(encoding="utf-8").startswith(f"# {int(page.name[:4])}. ")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_what_is_there(page: Path) -> None:
    links = LINK.findall(page.read_text(encoding="utf-8"))
    assert [link for link in links if not (page.parent / link).exists()] == []


@pytest.mark.parametrize("page", ["ARCHITECTURE.md", "CONTRIBUTING.md", "docs/one-tick.md"])
def test_modules_that_a_page_names_exist(page: str) -> None:
    named = set(MODULE.findall((ROOT / page).read_text(encoding="utf-8")))
    places = {name: ROOT / "src" / "evertick" / name for name in named}
    assert named
    assert sorted(name for name, at in places.items() if not (at.exists() or at.with_suffix(".py").exists())) == []


def test_every_setting_is_told_with_its_default() -> None:
    told = dict(SETTING.findall((ROOT / "docs" / "settings.md").read_text(encoding="utf-8")))
    assert told == {PREFIX + field.name.upper(): _shown(field.default) for field in fields(Settings)}


def test_every_quota_that_a_429_may_name_is_told() -> None:
    _, _, quotas = (ROOT / "docs" / "http-api.md").read_text(encoding="utf-8").partition("\n## Quotas\n")
    rows = [line.split("|")[1] for line in quotas.partition("\n## ")[0].splitlines() if line.startswith("| `")]
    assert {name for row in rows[1:] for name in re.findall(r"`(\w+)`", row)} == set(QuotaName)


def _shown(default: object) -> str:
    match default:
        case None | ():
            return "none"
        case bool():
            return f"`{str(default).lower()}`"
        case float():
            return f"`{default:g}`"
        case _:
            return f"`{default}`"
