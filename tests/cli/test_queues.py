import pytest

from cli.commands import Cli


async def test_queues_are_listed_and_limited(cli: Cli) -> None:
    await cli.json("jobs", "add", "refresh", "* * * * *", "--handler", "h", "--queue", "reports")
    (queue,) = await cli.json("queues", "list")
    assert (queue["name"], queue["max_running"], queue["max_ready"]) == ("reports", None, 250_000)
    assert await cli.json("queues", "edit", "reports", "--max-running", "5") == queue | {"max_running": 5}
    limited = await cli.json("queues", "edit", "reports", "--max-ready", "10")
    assert limited == queue | {"max_running": 5, "max_ready": 10}
    assert "5" in (await cli.run("queues", "list")).output
    rated = await cli.json("queues", "edit", "reports", "--rate-limit", "0.5", "--rate-burst", "4")
    assert rated == limited | {"rate_limit": 0.5, "rate_burst": 4}, "other limits stay"
    edited = await cli.json(*("queues", "edit", "reports", "--max-running", "none", "--rate-burst", "none"))
    assert edited == queue | {"max_ready": 10, "rate_limit": 0.5}
    await cli("queues", "edit", "new", "--rate-limit", "2")
    assert [queue["name"] for queue in await cli.json("queues", "list")] == ["new", "reports"]


@pytest.mark.parametrize("backend", ["database", "api"])
async def test_what_is_no_limit_is_refused(cli: Cli) -> None:
    for wrong in ("many", "-1", "1.5"):
        refused = await cli.run("queues", "edit", "reports", "--max-running", wrong)
        assert refused.exit_code == 2
    for wrong in ("many", "0", "-1", "nan", "inf", "9" * 400):
        assert (await cli.run("queues", "edit", "reports", "--rate-limit", wrong)).exit_code == 2
    assert (await cli.run("queues", "edit", "reports")).exit_code == 2
    assert await cli.json("queues", "list") == []
