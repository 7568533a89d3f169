from cli.commands import Cli


async def test_queues_are_listed_and_limited(cli: Cli) -> None:
    await cli.json("jobs", "add", "refresh", "* * * * *", "--handler", "h", "--queue", "reports")
    assert await cli.json("queues", "list") == [{"name": "reports", "max_running": None}]
    assert await cli.json("queues", "edit", "reports", "--max-running", "5") == {"name": "reports", "max_running": 5}
    assert "5" in (await cli.run("queues", "list")).output
    unlimited = await cli.json("queues", "edit", "reports", "--max-running", "none")
    assert unlimited == {"name": "reports", "max_running": None}


async def test_what_is_no_limit_is_refused(cli: Cli) -> None:
    for wrong in ("many", "-1", "1.5"):
        refused = await cli.run("queues", "edit", "reports", "--max-running", wrong)
        assert refused.exit_code == 2
    assert await cli.json("queues", "list") == []
