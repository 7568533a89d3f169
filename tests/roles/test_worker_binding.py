"""How a payload meets a handler's parameters."""

from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from evertick.domain.errors import InvalidInput
from evertick.executor.handlers.registry import FunctionHandler, Handlers
from evertick.executor.handlers.run import DoNotRetry, Run
from evertick.store.engine.lanes import Leased

if TYPE_CHECKING:
    from evertick.store.database import Pool

AT = datetime(2026, 6, 9, 12, tzinfo=UTC)


def called(function: Callable[..., Any], payload: str | None = None) -> Any:
    leased = Leased(
        1, 2, 3, 4, AT, AT, 1, "tick", 1, "job", "handle", "UTC", None, 60, "{}", payload, None, None, False
    )
    return FunctionHandler("handle", function).call(leased, AT)


def test_the_run_and_the_fields_of_the_payload_come_by_name() -> None:
    def handle(run: Run, customer: str, amount: int = 5) -> tuple[str, str, int]:
        return run.name, customer, amount

    assert called(handle, '{"customer": "c1"}') == ("job", "c1", 5)
    assert called(handle, '{"amount": 7, "customer": "c1"}') == ("job", "c1", 7)


def test_a_handler_may_take_nothing_or_only_the_run_whatever_the_payload() -> None:
    assert called(lambda: "nothing", "[1, 2]") == "nothing"
    assert called(lambda run: run.payload, "[1, 2]") == [1, 2]
    assert called(lambda _: "ignored") == "ignored"


def test_the_run_need_not_come_first_nor_at_all() -> None:
    def later(customer: str, *, this: "Run") -> tuple[str, str]:
        return customer, this.name

    def never(customer: str) -> str:
        return customer

    assert called(later, '{"customer": "c1"}') == ("c1", "job")
    assert called(never, '{"customer": "c1"}') == "c1"


def test_values_are_converted_by_their_annotations() -> None:
    def handle(at: datetime, amount: float | None = None) -> tuple[datetime, float | None]:
        return at, amount

    assert called(handle, '{"at": "2026-06-09T12:00:00Z", "amount": 2}') == (AT, 2.0)


def test_annotations_that_cannot_be_resolved_or_are_no_json_leave_values_as_they_are() -> None:
    class Customer: ...

    def hidden(pool: "Pool") -> object:
        return pool

    def odd(customer: Customer) -> object:
        return customer

    assert called(hidden, '{"pool": [1]}') == [1]
    assert called(odd, '{"customer": {"id": 1}}') == {"id": 1}


def test_further_fields_go_to_a_parameter_that_takes_them() -> None:
    def handle(run: Run, customer: str, **more: object) -> object:
        return customer, more

    assert called(handle, '{"customer": "c1", "b": 2}') == ("c1", {"b": 2})


@pytest.mark.parametrize(
    ("payload", "why"),
    [
        (None, "object missing required field `customer`"),
        ("{}", "object missing required field `customer`"),
        ("[1]", "expected `object`, got `array`"),
        ('{"customer": 7}', "expected `str`, got `int` - at `customer`"),
        ('{"customer": "c1", "colour": 7}', "object contains unknown field `colour`"),
    ],
)
def test_a_payload_that_does_not_fit_is_not_tried_again(payload: str | None, why: str) -> None:
    def handle(run: Run, customer: str) -> None: ...

    with pytest.raises(DoNotRetry) as refused:
        called(handle, payload)
    assert str(refused.value) == f"the payload does not fit handler 'handle': {why}"


def test_a_handler_that_only_returns_a_coroutine_is_told_to_be_async() -> None:
    async def work() -> None: ...

    def handle() -> object:
        return work()

    with pytest.raises(DoNotRetry, match="make it `async def`"):
        called(handle)


def test_what_kind_of_function_it_is_shows_through_partials_and_objects() -> None:
    async def work(run: Run) -> None: ...

    class Worker:
        async def __call__(self, run: Run) -> None: ...

    assert FunctionHandler("a", partial(work)).is_async
    assert FunctionHandler("b", Worker()).is_async
    assert not FunctionHandler("c", print_nothing).is_async


def print_nothing() -> None: ...


def generate() -> Any:
    yield 1


def many(*customers: str) -> None: ...


def by_position(customer: str, /) -> None: ...


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (generate, "'odd' yields"),
        (many, r"'odd' takes \*customers"),
        (by_position, "'odd' takes 'customer' by position only"),
    ],
)
def test_functions_that_cannot_be_handlers_are_refused(function: Callable[..., Any], why: str) -> None:
    with pytest.raises(InvalidInput, match=why):
        FunctionHandler("odd", function)


def test_two_handlers_of_one_name_are_refused() -> None:
    handlers = Handlers({"send": print_nothing})
    with pytest.raises(InvalidInput, match="two handlers named 'send'"):
        handlers.add("send", print_nothing)
