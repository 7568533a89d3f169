"""Every code block of the pages is run, or checked as far as it can be: Python is executed, commands of Evertick are
known with all their options, JSON and TOML are what the contract and the settings accept.

`test_documented_examples` runs the interactive sessions; some pages have tests of their own for what they promise.
"""

import itertools
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml  # type: ignore[import-untyped]

from cli.commands import Cli, unknown_words
from documented import PAGES, ROOT, Block, all_blocks, blocks_of
from evertick.api.app import operations
from evertick.config.reading import FILE_SUFFIX, PREFIX, read_settings
from evertick.config.settings import Settings
from evertick.contract.alerts import Notice
from evertick.contract.derived import lenient
from evertick.contract.job_reading import read_spec
from evertick.domain.schedule.schedule import Schedule
from front_door import Server, stopped, told

CHECKED = {"python", "pycon", "sh", "console", "json", "toml", "yaml", "go", "typescript"}
FREE = {"", "text"}
"""Languages of blocks that are no code."""
PYTHON_ELSEWHERE = {
    ROOT / "docs" / name
    for name in ("receivers.md", "quickstart.md", "testing.md", "guides/django.md", "guides/litestar.md")
}
"""Run by tests of their own."""
SHELL = ("sh", "console")
SHELL_ELSEWHERE = ROOT / "docs" / "http-api.md"
"""Its blocks in `sh` are run by `test_front_door_examples`."""
PREAMBLE = "import evertick\nfrom evertick import App, Run\napp = App(name='page')\n"
"""Names that pages use after they were introduced elsewhere."""
VARIABLE = re.compile(rf"\b{PREFIX}[A-Z_]*[A-Z]\b")
NO_SETTINGS = {"EVERTICK_CONFIG", "EVERTICK_PROFILE", "EVERTICK_TEST_SERVERS"}
SHELL_WORDS = {
    "export",
    "echo",
    "for",
    "do",
    "done",
    "sh",
    "uvicorn",
    "flask",
    "go",
    "npm",
    "crontab",
    "pip",
    "cd",
    "jq",
}
"""Programs that a page may call without a check."""
EXECUTED = {("preview",), ("jobs", "add"), ("jobs", "list"), ("jobs", "import"), ("queues", "list"), ("queues", "edit")}


def _name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def _place_of(block: Block) -> str:
    return block.place


session = pytest.mark.asyncio(loop_scope="session")


def test_each_block_says_what_it_is_so_that_it_can_be_checked() -> None:
    blocks = [block for page in PAGES for block in blocks_of(page)]
    unknown = [block for block in blocks if block.not_run is None and block.language not in CHECKED | FREE]
    assert [(block.place, block.language) for block in unknown] == []
    assert len(blocks) > 150


@session
async def test_the_python_of_all_pages_runs(server: Server, tmp_path: Path) -> None:
    secret = (await Cli.at("--data-dir", str(server.data_dir)).json("secrets", "show"))["current"]
    environment = {"EVERTICK_DATA_DIR": str(server.data_dir), "WEBHOOK_SECRET": secret}
    pages: dict[str, list[tuple[str, str]]] = {}
    for block in all_blocks("python"):
        if block.page not in PYTHON_ELSEWHERE and not _is_program(block):
            pages.setdefault(str(block.page), []).append((block.place, block.code))
    (tmp_path / "blocks.json").write_text(json.dumps(pages), encoding="utf-8")
    runner = f"""
import json, traceback, sys
failed = []
for page, blocks in json.load(open("blocks.json")).items():
    names = {{"__name__": "page"}}
    exec({PREAMBLE!r}, names)
    for place, code in blocks:
        try:
            exec(compile(code, place, "exec"), names)
        except Exception:
            failed.append(place)
            traceback.print_exc()
    names["app"].close_sync()
sys.exit(f"failed: {{failed}}" if failed else 0)
"""
    await server.output(sys.executable, "-c", runner, cwd=tmp_path, **environment)


def _is_program(block: Block) -> bool:
    """Whether it runs until it is stopped."""
    return re.search(r"^app\.run\(\)", block.code, re.MULTILINE) is not None


@session
@pytest.mark.parametrize("block", [block for block in all_blocks("python") if _is_program(block)], ids=_place_of)
async def test_programs_on_a_page_run_until_they_are_stopped(server: Server, block: Block) -> None:
    data_dir = str(server.data_dir)
    async with server.running(sys.executable, "-c", block.code, EVERTICK_DATA_DIR=data_dir) as program:
        await told(program.stderr, "worker .*started")
        assert await stopped(program) == 0


def test_only_the_first_line_of_a_command_has_a_prompt() -> None:
    shown = [(block.place, block.code.splitlines()) for block in all_blocks("console")]
    pairs = [(place, *pair) for place, lines in shown for pair in itertools.pairwise(lines)]
    assert [place for place, first, then in pairs if first.endswith("\\") and then.startswith("$ ")] == []


@pytest.mark.parametrize("page", sorted({block.page for block in all_blocks(*SHELL)}), ids=_name_of)
def test_commands_on_a_page_exist_with_their_options(page: Path) -> None:
    for block in all_blocks(*(("console",) if page == SHELL_ELSEWHERE else SHELL), page=page):
        for words in block.commands():
            _check(words, block)


def _check(words: Sequence[str], block: Block) -> None:
    match Path(words[0]).name, *words[1:]:
        case "evertick", *arguments:
            unknown = unknown_words(arguments)
            assert not unknown, f"{block.place}: {' '.join(words)}: there is no {unknown}"
        case "curl", *arguments:
            _check_request(arguments, block)
        case "make", *targets:
            makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
            assert all(f"\n{target}:" in makefile for target in targets), block.place
        case ("pytest" | "python", *arguments):
            files = [word for word in arguments if word.startswith(("tests/", "docs/", "examples/"))]
            assert all((ROOT / file).exists() for file in files), f"{block.place}: {files}"
        case program, *_:
            assert program in SHELL_WORDS, f"{block.place}: mark the block, `{program}` is not checked"


def _check_request(arguments: Sequence[str], block: Block) -> None:
    """The API has the operation that curl calls."""
    url = next(word for word in arguments if "/api/v1" in word)
    path = re.sub(r"\?.*", "", "/api/v1" + url.partition("/api/v1")[2])
    flag = next((word for word in ("-X", "--request") if word in arguments), None)
    has_body = any(word in arguments for word in ("-d", "--json", "--data"))
    assert not has_body or "--json" in arguments, f"{block.place}: without --json the API answers 415"
    method = arguments[arguments.index(flag) + 1] if flag else "POST" if has_body else "GET"
    templates = [re.sub(r"\\{\w+\\}", "[^/]+", re.escape(each.path)) for each in operations() if each.method == method]
    assert any(re.fullmatch(template, path) for template in templates), f"{block.place}: {method} {path}"


def _to_execute() -> list[Any]:
    """Commands that a reader without anything could run: no placeholders, no server or database of somebody's."""
    found = []
    for block in all_blocks("console"):
        for words in block.commands():
            name = tuple(words[1:3])
            is_ours = Path(words[0]).name == "evertick" and (name in EXECUTED or name[:1] in EXECUTED)
            needs_more = any(re.search(r"…|\.cron$|/etc", word) for word in words)
            if is_ours and not needs_more and block.page.name != "cli.md":
                found.append(pytest.param(words[1:], id=f"{block.place}-{' '.join(words[1:3])}"))
    return found


@session
@pytest.mark.parametrize("words", _to_execute())
async def test_commands_on_a_page_succeed(server: Server, words: list[str]) -> None:
    over_api = Cli.at("--url", server.url, EVERTICK_API_KEY=server.api_key)
    cli = Cli.at() if words[0] == "preview" else over_api
    result = await cli.run(*words, stdin="*/5 * * * * date\n")
    assert result.exit_code == 0, result.output
    if words[:2] == ["jobs", "add"]:
        await over_api("jobs", "delete", words[2])


async def test_the_readme_shows_what_a_preview_prints() -> None:
    (block,) = [block for block in all_blocks("console", page=ROOT / "README.md") if "preview" in block.code]
    (words,) = block.commands()
    _, _, shown = block.code.partition("\n")
    assert _compared(shown) == _compared(await Cli.at()(*words[1:]))


def _compared(text: str) -> list[list[str]]:
    """Words by line, without rules and the release of the time zones."""
    lines = re.sub(r"tz database \w+", "tz database", text).splitlines()
    return [words for line in lines if (words := line.replace("─", "").split())]


def test_the_limits_name_a_command_for_each_figure() -> None:
    page = ROOT / "docs" / "limits.md"
    commands = re.findall(r"\| `([^`|]+)` \|$", page.read_text(encoding="utf-8"), re.MULTILINE)
    block = Block(page, 0, "console", "".join(f"$ {command}\n" for command in commands), None)
    checked = list(block.commands())
    for words in checked:
        _check(words, block)
    assert len(checked) > 15


@pytest.mark.parametrize("page", PAGES, ids=_name_of)
def test_commands_within_the_text_of_a_page_exist(page: Path) -> None:
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    commands = re.findall(r"`evertick\s([a-z][^`]*)`", text)
    assert [command for command in commands if unknown_words(command.split())] == []


@pytest.mark.parametrize("block", all_blocks("json"), ids=_place_of)
def test_json_on_a_page_is_what_the_contract_accepts(block: Block) -> None:
    document = json.loads(block.code)
    match document:
        case {"schedule": str(text), "target": _}:
            spec = read_spec(document)
            Schedule(text, spec.timezone, dst_gap=spec.dst_gap, dst_overlap=spec.dst_overlap)
        case {"notice_id": _}:
            msgspec.convert(document, lenient(Notice))


@pytest.mark.parametrize("block", all_blocks("toml"), ids=_place_of)
def test_toml_on_a_page_has_no_faults(block: Block, tmp_path: Path) -> None:
    (tmp_path / "evertick.toml").write_text(block.code, encoding="utf-8")
    read_settings({}, tmp_path)


@pytest.mark.parametrize("block", all_blocks("yaml"), ids=_place_of)
def test_yaml_on_a_page_can_be_read(block: Block) -> None:
    assert list(yaml.safe_load_all(block.code))


@pytest.mark.parametrize("block", all_blocks("go", "typescript"), ids=_place_of)
def test_programs_in_other_languages_are_examples_that_are_tested(block: Block) -> None:
    found = re.fullmatch(r'--8<-- "(examples/worker-.*)"\n', block.code)
    assert found
    assert (ROOT / found[1]).is_file()


@pytest.mark.parametrize("page", PAGES, ids=_name_of)
def test_variables_that_a_page_names_are_settings(page: Path) -> None:
    fields = {PREFIX + name.upper() for name in Settings.__dataclass_fields__}
    known = fields | {name + FILE_SUFFIX for name in fields} | NO_SETTINGS
    named = set(VARIABLE.findall(page.read_text(encoding="utf-8")))
    assert sorted(named - known) == []
