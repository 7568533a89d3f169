"""An application that uses Evertick. Each line that a type checker must refuse ends with a comment that says why."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

from evertick import App, Run

app = App(name="shop", orphans="pause")


@dataclass
class Line:
    article: str
    price: Decimal


@app.handler
async def send_invoice(run: Run, customer: str, lines: list[Line]) -> int:
    return len(lines)


@app.handler("remind")
def send_reminder(customer: str, days: int = 3) -> None: ...


@app.cron("0 9 * * 1", timezone="Europe/Paris", max_retries=5, payload={"customer": "all"})
@app.every(timedelta(hours=1), name="often")
def report(run: Run, customer: str) -> None: ...


@app.middleware
async def timed(run: Run, call_next: Callable[[], Awaitable[Any]]) -> Any:
    run.progress("1 of 2")
    return await call_next()


@app.on_failure
def tell(run: Run, error: BaseException) -> None: ...


@app.on_dead
async def tell_later(run: Run, error: BaseException) -> None: ...


@app.on_dead  # error: takes one argument
def tell_little(run: Run) -> None: ...


@app.every("5m", max_retrys=5)  # error: unexpected keyword argument
def poll() -> None: ...


@app.cron("* * * * *", missed_window="RUN_TWICE")  # error: not one of the words
def tidy() -> None: ...


async def use() -> None:
    lines = [Line("tea", Decimal("2.50"))]
    submitted = await send_invoice.submit("c1", lines)
    submitted.run_id.upper()
    await send_invoice.submit(customer="c1", lines=lines)
    await send_invoice.submit(customer="c1", lines=lines, delay="3d")
    await send_invoice.submit(customer="c1", lines=lines, at=datetime(2026, 6, 9, tzinfo=UTC))
    await send_invoice.options(delay="3d", max_retries=5, queue="billing").submit(customer="c1", lines=lines)
    send_reminder.submit_sync("c1")
    send_reminder("c1", days=2)
    count: int = await send_invoice(Run.__new__(Run), "c1", lines)
    assert count, send_invoice.__name__
    await app.submit(send_invoice, {"customer": "c1"}, delay="3d", timeout_seconds=10)
    await app.submit("elsewhere", delay=timedelta(days=3))
    number: int = await submitted.result(timeout=30)
    assert number == send_invoice.options(name="x").submit_sync("c1", lines).result(timedelta(seconds=3))
    assert (await submitted.wait()).status == "success"
    await send_invoice.submit(customer="c1", lines=lines, idempotency_key="order-1")
    job = await app.pause(report, "holidays")
    await app.resume(job.name, missed="run_once")
    await (await app.trigger("often", force=True)).result(30)
    assert [run.run_id for run in await app.history(report, status="dead")]
    app.cancel_sync(app.submitted_sync(submitted.run_id).run_id)
    assert app.list_jobs_sync(status="paused", labels={"app": "shop"})[0].name

    text: str = await submitted.result(timeout=30)  # error: not an int
    await submitted.wait(timeout="3s")  # error: not a str
    await send_invoice.submit(customer="c1", lines=lines, idempotency_key=1)  # error: not a str
    await app.resume("often", missed="run_twice")  # error: not one of the words
    await app.history(status="done")  # error: not one of the words
    await app.list_jobs(stauts="paused")  # error: unexpected keyword argument
    assert text
    await send_invoice.submit(customer=7, lines=lines)  # error: not a str
    await send_invoice.submit("c1")  # error: an argument is missing
    await send_invoice.submit(customer="c1", lines=lines, dely="3d")  # error: unexpected keyword argument
    await send_invoice.options(max_retrys=5).submit("c1", lines)  # error: unexpected keyword argument
    await send_invoice.options(delay="3d").submit("c1", 7)  # error: not a list
    send_reminder.submit_sync("c1", "soon")  # error: not an int
    send_reminder("c1", days="2")  # error: not an int
    await app.submit("elsewhere", dely="3d")  # error: unexpected keyword argument
    await app.submit("elsewhere", max_retrys=5)  # error: unexpected keyword argument
    await app.submit("elsewhere", priority="urgent")  # error: not one of the words
    App(orphans="forget")  # error: not one of the words
