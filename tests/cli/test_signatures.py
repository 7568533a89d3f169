"""Commands from the signatures of functions."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import pytest
from click.testing import CliRunner, Result

from evertick.cli.main import main
from evertick.cli.signatures import Argument, CommandGroup, Option


class Colour(StrEnum):
    RED = "red"
    DARK_BLUE = "dark-blue"


app = CommandGroup(help="Paint things.")
called: list[dict[str, Any]] = []


@app.add()
def paint(
    thing: Annotated[str, Argument(help="What to paint.")],
    others: Annotated[list[str] | None, Argument(help="Paint them, too.")] = None,
    *,
    colour: Annotated[Colour, Option(help="Which colour.")] = Colour.RED,
    coats: Annotated[int, Option("--coats", "-c", min=1, max=9, help="How many coats.")] = 2,
    label: Annotated[list[str] | None, Option(metavar="TEXT", help="Can be repeated.")] = None,
    plan: Annotated[Path | None, Option(help="A plan.")] = None,
    is_outside: Annotated[bool | None, Option("--outside/--inside", help="Where.")] = None,
    dry_run: Annotated[bool, Option("--dry-run", help="Only say it.")] = False,
    words: Annotated[str, Option(parser=str.upper)] = "none",
    litres: Annotated[float, Option(min=0, help="How much paint.")] = 0.0,
    width: Annotated[float | None, Option(help="How wide.")] = None,
) -> None:
    """Paint a thing. It takes
    a while.

    It dries later.

    Examples

      paint-shop paint the-house --colour dark-blue --coats 3 --label urgent --label "for the neighbours, too" --dry-run
    """
    called.append({**locals()})


@app.add("wash-off")
def remove_paint() -> None:
    """Remove all paint."""


def run(*arguments: str) -> Result:
    called.clear()
    return CliRunner().invoke(app, arguments, prog_name="paint-shop")


def test_a_command_gets_the_defaults_of_its_parameters() -> None:
    assert run("paint", "house").exit_code == 0
    assert called == [
        {
            "thing": "house",
            "others": None,
            "colour": Colour.RED,
            "coats": 2,
            "label": None,
            "plan": None,
            "is_outside": None,
            "dry_run": False,
            "words": "NONE",
            "litres": 0.0,
            "width": None,
        }
    ]


def test_values_are_converted_to_the_types_of_the_parameters() -> None:
    given = (
        "--colour",
        "dark-blue",
        "-c",
        "3",
        "--label",
        "a",
        "--label",
        "b",
        "--plan",
        "x/y",
        "--inside",
        "--dry-run",
    )
    assert run("paint", "house", "door", "roof", *given, "--words", "loud").exit_code == 0
    (found,) = called
    assert (found["others"], found["colour"], found["coats"]) == (["door", "roof"], Colour.DARK_BLUE, 3)
    assert (found["label"], found["plan"], found["is_outside"]) == (["a", "b"], Path("x/y"), False)
    assert (found["dry_run"], found["words"]) == (True, "LOUD")


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("paint",), "Missing argument 'THING'"),
        (("paint", "house", "--coats", "0"), "0 is not in the range 1<=x<=9"),
        (("paint", "house", "--coats", "two"), "'two' is not a valid integer"),
        (("paint", "house", "--litres", "-0.5"), "-0.5 is not in the range x>=0"),
        (("paint", "house", "--litres", "nan"), "nan is not a finite number"),
        (("paint", "house", "--litres", "inf"), "inf is not a finite number"),
        (("paint", "house", "--width", "-inf"), "-inf is not a finite number"),
        (("paint", "house", "--colour", "pink"), "'pink' is not one of 'red', 'dark-blue'"),
        (("paint", "house", "--color", "red"), "Did you mean --colour?"),
        (("pain", "house"), "No such command 'pain'. Did you mean 'paint'?"),
        (("sell",), "No such command 'sell'."),
    ],
)
def test_a_mistake_is_named(arguments: tuple[str, ...], reason: str) -> None:
    result = run(*arguments)
    assert (result.exit_code, called) == (2, [])
    assert reason in result.stderr.replace("'--colour'", "--colour")


def test_the_help_lists_arguments_options_and_examples_that_do_not_wrap() -> None:
    lines = run("paint", "--help").stdout.splitlines()
    assert lines[0] == "Usage: paint-shop paint [OPTIONS] THING [OTHERS]..."
    assert "  Paint a thing. It takes a while." in lines
    assert any(line.split() == ["THING", "What", "to", "paint."] for line in lines)
    assert any(line.endswith("How many coats.  [default: 2; 1<=x<=9]") for line in lines)
    assert any(line.endswith("How much paint.  [default: 0.0; x>=0]") for line in lines)
    assert any(line.endswith("--colour [red|dark-blue]   Which colour.  [default: red]") for line in lines)
    example = 'paint-shop paint the-house --colour dark-blue --coats 3 --label urgent --label "for the neighbours, too"'
    assert lines[-2:] == ["Examples:", f"  {example} --dry-run"]


def test_the_help_of_a_group_has_the_first_paragraph_of_each_command() -> None:
    lines = run("--help").stdout.splitlines()
    assert lines[-2:] == ["  paint     Paint a thing. It takes a while.", "  wash-off  Remove all paint."]


def test_an_unknown_type_is_a_mistake_of_the_program() -> None:
    group = CommandGroup(help="")

    @group.add()
    def sell(price: Annotated[tuple[int, int], Option()]) -> None: ...

    @group.add()
    def buy(price: int) -> None: ...

    for name in ("sell", "buy"):
        with pytest.raises(TypeError):
            CliRunner().invoke(group, [name], catch_exceptions=False)


def test_on_windows_no_argument_is_taken_for_a_pattern_of_files_or_a_variable(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "a plan for the week").touch()
    monkeypatch.chdir(tmp_path)
    for schedule in ("* * * * *", "$HOME"):
        with monkeypatch.context() as windows:
            windows.setattr("sys.argv", ["evertick", schedule])
            windows.setattr("os.name", "nt")
            with pytest.raises(SystemExit):
                main()
        assert f"No such command '{schedule}'." in capsys.readouterr().err
