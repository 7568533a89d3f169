"""Decorated functions: what they stay, how they are submitted, and how payloads become their arguments again."""

import functools
import inspect
import pickle
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any, TypedDict
from uuid import UUID

import asyncpg
import msgspec
import pydantic
import pytest

from engine import until
from evertick import App, InvalidInput, Run
from evertick.domain.states import RunStatus

app = App(name="shop")


class Colour(Enum):
    RED = "red"


@dataclass
class Line:
    article: str
    price: Decimal


class Size(msgspec.Struct):
    width: int


class Address(TypedDict):
    city: str


class Customer(pydantic.BaseModel):
    name: str
    born_at: datetime


@app.handler
def plain(number: int = 1) -> int:
    """Doubles."""
    return 2 * number


@app.handler
async def waiting(run: Run) -> None: ...


def test_a_decorated_function_stays_what_it_was() -> None:
    assert plain(4) == 8
    assert (plain.__name__, plain.__doc__) == ("plain", "Doubles.")
    assert pickle.loads(pickle.dumps(plain)) is plain
    assert inspect.iscoroutinefunction(waiting)
    assert functools.wraps(plain)(lambda: None).__name__ == "plain"


async def test_arguments_of_all_kinds_reach_the_handler_as_they_were(database_url: str) -> None:
    app = App(database_url=database_url)
    given: dict[str, Any] = {
        "lines": [Line("tea", Decimal("2.50"))],
        "size": Size(3),
        "address": {"city": "Wien"},
        "customer": Customer(name="Ada", born_at=datetime(1815, 12, 10, tzinfo=UTC)),
        "friends": {"a": Customer(name="Bob", born_at=datetime(1900, 1, 1, tzinfo=UTC))},
        "at": datetime(2026, 6, 9, 13, tzinfo=UTC),
        "token": UUID(int=7),
        "colour": Colour.RED,
    }
    seen: list[dict[str, Any]] = []

    @app.handler
    async def order(  # noqa: PLR0917 - one of each kind
        lines: list[Line],
        size: Size,
        address: Address,
        customer: Customer,
        friends: dict[str, Customer],
        at: datetime,
        token: UUID,
        colour: Colour | None = None,
    ) -> None:
        seen.append(locals())

    async with app.running():
        submitted = await order.submit(**given)
        await until(lambda: has_succeeded(submitted))
    (found,) = seen
    assert {name: found[name] for name in given} == given


async def has_succeeded(submitted: Any) -> bool:
    return bool(await submitted.status() is RunStatus.SUCCESS)


async def test_a_payload_that_does_not_fit_is_refused_before_it_is_stored() -> None:
    app = App()

    @app.handler
    def bill(run: Run, customer: str, count: int = 1) -> None: ...

    @app.handler
    def greet(customer: Customer) -> None: ...

    for payload, says in (
        ({"customer": 7}, "does not fit handler 'bill': expected `str`, got `int` - at `customer`"),
        ({"customer": "c1", "cuont": 2}, "unknown field `cuont`"),
        (None, "missing required field `customer`"),
        ({"customer": object()}, "cannot be written as JSON: it has a object"),
    ):
        with pytest.raises(InvalidInput, match=says):
            await app.submit(bill, payload)
    with pytest.raises(InvalidInput, match=r"(?s)handler 'greet': .*born_at.*at `customer`"):
        await app.submit(greet, {"customer": {"name": "Ada"}})
    with pytest.raises(InvalidInput, match="bill got an unexpected keyword argument 'max_retries'"):
        bill.submit_sync("c1", max_retries=5)  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"dely": "3d"}, "dely: is not a known option: did you mean 'delay'?"),
        ({"max_retrys": 5}, "max_retrys: is not a known option: did you mean 'max_retries'?"),
        ({"conection": None}, "conection: is not a known option: did you mean 'connection'?"),
        ({"delay": "3 dayz"}, "delay: '3 dayz': write it as '90s', '2h' or '3d', or as a timedelta, at most 100 years"),
        ({"delay": timedelta(days=40_000)}, "delay: datetime.timedelta(days=40000): write it as"),
    ],
)
async def test_a_mistaken_option_of_submit_is_named_as_it_was_written(
    database_url: str, options: dict[str, Any], reason: str
) -> None:
    async with App(database_url=database_url) as app:
        with pytest.raises(InvalidInput) as refused:
            await app.submit("anything", **options)
    assert str(refused.value).startswith(reason)


async def test_fields_of_the_job_stand_beside_the_arguments_or_in_options(
    database_url: str, connection: asyncpg.Connection
) -> None:
    app = App(database_url=database_url)

    @app.handler
    def remind(customer: str, delay: int = 0) -> None: ...

    @app.handler
    def thank(customer: str) -> None: ...

    async with app:
        await thank.submit("c1", delay="3d")
        await thank.options(max_retries=0, name="named", queue="other").submit(customer="c2")
        await remind.options(delay="2d").submit("c3", delay=5)
    stored = await connection.fetch(
        "SELECT spec::jsonb - 'name' AS spec, payload::text FROM job_versions ORDER BY job_id"
    )
    found = [(msgspec.json.decode(row["spec"]), msgspec.json.decode(row["payload"])) for row in stored]
    assert [(spec["schedule"], payload) for spec, payload in found] == [
        ("in 3d", {"customer": "c1"}),
        ("now", {"customer": "c2"}),
        ("in 2d", {"customer": "c3", "delay": 5}),
    ]
    assert (found[1][0]["max_retries"], found[1][0]["target"]["queue"]) == (0, "other")


async def test_a_payload_that_does_not_fit_when_it_runs_fails_for_good(database_url: str) -> None:
    app = App(database_url=database_url)

    @app.handler
    def bill(count: int) -> None: ...

    async with app.running():
        # To the app's own queue by name, as another program would.
        other = App(name="other", database_url=database_url)
        submitted = await other.submit("bill", {"count": "many"}, queue=app.queue)
        await until(lambda: is_dead(submitted))
        await other.close()


async def is_dead(submitted: Any) -> bool:
    return bool(await submitted.status() is RunStatus.DEAD)
