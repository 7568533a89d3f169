"""The examples of docs/python.md, with a real database."""

import asyncio
import re
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import asyncpg
import pytest

from engine import PATIENCE_SECONDS

PAGE = (Path(__file__).parents[2] / "docs" / "python.md").read_text(encoding="utf-8")


@pytest.fixture
def guide(database_url: str, monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """All that the page defines, block after block."""
    monkeypatch.setenv("EVERTICK_DATABASE_URL", database_url)
    names: dict[str, Any] = {}
    for number, block in enumerate(re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)):
        exec(compile(block, f"python.md, block {number + 1}", "exec"), names)
    return SimpleNamespace(**names)


async def test_results_keys_and_control(guide: SimpleNamespace, capsys: pytest.CaptureFixture[str]) -> None:
    async with guide.app.running(), asyncio.timeout(PATIENCE_SECONDS):
        assert await guide.total_of([Decimal("2.50"), Decimal(1)]) == Decimal("3.50")
        await guide.order_placed(1, "c1")
        await guide.order_placed(1, "c1")
        await guide.holidays()
        jobs = await guide.app.list_jobs()
        assert sorted(job.name.partition("-")[0] for job in jobs) == ["count_total", "send_invoice", "send_report"]
    assert capsys.readouterr().out == "0 0\n"


async def test_orders_reminders_and_the_function_submit(guide: SimpleNamespace, database_url: str) -> None:
    grants, function = re.findall(r"```sql\n(.*?)```", PAGE, re.DOTALL)
    own = await asyncpg.connect(database_url)
    await own.execute("CREATE TABLE orders (customer text)")
    async with guide.app:
        await guide.place_order(own, "c1")
        await guide.place_urgent_order(own, "c2")
        await guide.remind("c3")
    await own.execute(function)
    role = f"shop_of_guide_{own.get_server_pid()}"
    await own.execute(f"CREATE ROLE {role}")
    await own.execute(grants.replace("shop", role))
    stored = await own.fetch(
        "SELECT payload->>'customer' AS customer, handler FROM evertick.job_versions ORDER BY job_id"
    )
    assert [tuple(row) for row in stored] == [
        ("c1", "send_invoice"),
        ("c2", "send_invoice"),
        *[("c3", "send_invoice")] * 3,
        ("c1", "send_invoice"),
    ]
    await own.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")
    await own.close()
