"""What an app's decorators accept, and what they refuse on the spot."""

import pickle
from datetime import UTC, datetime, timedelta

import pytest

from evertick import App, Run
from evertick.domain.errors import InvalidFields, InvalidInput
from evertick.sdk.declarations import InvalidDeclaration, every_text, when_text


def schedules(app: App) -> dict[str, str]:
    return {name: job.fields["schedule"] for name, job in app.declarations.jobs.items()}


def test_each_form_of_schedule_has_a_decorator() -> None:
    app = App()

    @app.cron("*/5 * * * *", timezone="Europe/Paris", missed_window="RUN_ONCE")
    async def refresh(run: Run) -> None: ...

    @app.every("5m")
    @app.every(timedelta(hours=1), name="slow poll")
    def poll() -> None: ...

    @app.rrule("FREQ=MONTHLY;BYDAY=-1FR")
    def pay(run: Run) -> None: ...

    @app.schedule("@daily")
    def tidy() -> None: ...

    assert schedules(app) == {
        "refresh": "*/5 * * * *",
        "slow poll": "every 3600s",
        "poll": "every 5m",
        "pay": "RRULE:FREQ=MONTHLY;BYDAY=-1FR",
        "tidy": "@daily",
    }
    assert sorted(app.declarations.handlers) == ["pay", "poll", "refresh", "tidy"]


def test_a_declared_job_carries_the_label_of_its_app_and_calls_its_function() -> None:
    app = App(name="billing", queue="money")

    @app.every("1h", payload={"a": 1}, labels={"team": "growth"})
    def charge(run: Run, a: int) -> None: ...

    fields = app.declarations.jobs["charge"].fields
    assert fields["labels"] == {"app": "billing", "team": "growth"}
    assert fields["target"] == {"type": "worker", "queue": "money", "handler": "charge"}
    assert fields["payload"] == {"a": 1}


def test_the_queue_of_an_app_is_named_as_the_app_unless_it_is_given() -> None:
    assert (App().queue, App(name="shop").queue, App(name="The Shop", queue="shop").queue) == ("app", "shop", "shop")


@pytest.mark.parametrize("name", ["The Shop", "", "http", "x" * 64])
def test_an_app_whose_name_cannot_be_a_queue_s_says_so(name: str) -> None:
    with pytest.raises(InvalidInput, match="give that by queue="):
        App(name=name)


def test_a_queue_that_cannot_be_is_refused() -> None:
    with pytest.raises(InvalidInput, match="must be 1 to 63 characters"):
        App(queue="Shop")


def test_a_decorated_function_is_still_that_function() -> None:
    app = App()

    @app.every("1h")
    @app.handler("other")
    def double(number: int) -> int:
        return 2 * number

    assert double(21) == 42
    assert sorted(app.declarations.handlers) == ["double", "other"]


def test_two_handlers_of_one_name_are_refused() -> None:
    app = App()
    app.handler("send")(lambda: None)
    with pytest.raises(InvalidInput, match="two handlers named 'send'"):
        app.handler("send")(lambda: None)


def test_two_jobs_of_one_name_are_refused() -> None:
    app = App()

    def poll() -> None: ...

    app.every("5m")(poll)
    with pytest.raises(InvalidInput, match="two jobs named 'poll'"):
        app.every("6m")(poll)


def test_a_wrong_schedule_zone_or_field_is_refused_where_it_stands() -> None:
    app = App()
    with pytest.raises(InvalidFields, match="schedule="):
        app.cron("61 * * * *")(lambda: None)
    with pytest.raises(InvalidFields, match="timezone="):
        app.cron("* * * * *", timezone="Europe/Pari")(lambda: None)
    with pytest.raises(InvalidFields, match="timeout_seconds"):
        app.cron("* * * * *", timeout_second=3)(lambda: None)  # type: ignore[call-arg]


def test_a_refusal_names_the_job_its_place_in_the_code_and_the_argument() -> None:
    app = App()

    def poll() -> None: ...

    with pytest.raises(InvalidDeclaration) as refused:
        app.every("5m", max_retries=-1, labels={"team": 7})(poll)  # type: ignore[dict-item]
    place, _, said = str(refused.value).partition(": job ")
    assert place.startswith(f"{__file__}:")
    assert said == "'poll': max_retries= must be from 0 to 1000; labels=['team'] must be a string, not a number"
    assert str(pickle.loads(pickle.dumps(refused.value))) == str(refused.value)


def test_when_a_one_off_or_an_interval_runs() -> None:
    assert when_text(None, None) == "now"
    assert when_text("3d", None) == "in 3d"
    assert when_text(timedelta(minutes=1), None) == "in 60s"
    assert when_text(timedelta(days=14), None) == "in 1209600s"
    assert when_text(timedelta(days=1, microseconds=1), None) == "in 86400.000001s"
    assert every_text(timedelta(days=14)) == "every 1209600s"
    assert when_text(None, datetime(2026, 6, 9, tzinfo=UTC)) == "2026-06-09T00:00:00+00:00"
    with pytest.raises(InvalidInput, match="needs a zone"):
        when_text(None, datetime(2026, 6, 9))  # noqa: DTZ001 - that is the point
    with pytest.raises(InvalidInput, match="exclude each other"):
        when_text("3d", datetime(2026, 6, 9, tzinfo=UTC))


async def test_only_handlers_of_the_app_can_be_submitted_as_functions() -> None:
    with pytest.raises(InvalidInput, match="is no handler of this app"):
        await App().submit(when_text)
