from cli.commands import Cli


async def test_queues_are_listed_and_limited(cli: Cli) -> None:
    await cli.json("jobs", "add", "refresh", "* * * * *", "--handler", "h", "--queue", "reports")
    unlimited = {"name": "reports", "max_running": None, "rate_limit": None, "rate_burst": None}
    assert await cli.json("queues", "list") == [unlimited]
    assert await cli.json("queues", "edit", "reports", "--max-running", "5") == unlimited | {"max_running": 5}
    assert "5" in (await cli.run("queues", "list")).output
    rated = await cli.json("queues", "edit", "reports", "--rate-limit", "0.5", "--rate-burst", "4")
    assert rated == unlimited | {"max_running": 5, "rate_limit": 0.5, "rate_burst": 4}, "other limits stay"
    edited = await cli.json(*("queues", "edit", "reports", "--max-running", "none", "--rate-burst", "none"))
    assert edited == unlimited | {"rate_limit": 0.5}
    await cli("queues", "edit", "new", "--rate-limit", "2")
    assert [queue["name"] for queue in await cli.json("queues", "list")] == ["new", "reports"]


async def test_what_is_no_limit_is_refused(cli: Cli) -> None:
    for wrong in ("many", "-1", "1.5"):
        refused = await cli.run("queues", "edit", "reports", "--max-running", wrong)
        assert refused.exit_code == 2
    for wrong in ("many", "0", "-1"):
        assert (await cli.run("queues", "edit", "reports", "--rate-limit", wrong)).exit_code == 2
    assert (await cli.run("queues", "edit", "reports")).exit_code == 2
    assert await cli.json("queues", "list") == []
