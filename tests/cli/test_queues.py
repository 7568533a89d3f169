from cli.commands import Cli


async def test_queues_are_listed_and_limited(cli: Cli) -> None:
    await cli.json("jobs", "add", "refresh", "* * * * *", "--handler", "h", "--queue", "reports")
    (queue,) = await cli.json("queues", "list")
    assert (queue["name"], queue["max_running"], queue["max_ready"]) == ("reports", None, 250_000)
    assert await cli.json("queues", "edit", "reports", "--max-running", "5") == queue | {"max_running": 5}
    limited = await cli.json("queues", "edit", "reports", "--max-ready", "10")
    assert limited == queue | {"max_running": 5, "max_ready": 10}
    assert "5" in (await cli.run("queues", "list")).output
    unlimited = await cli.json("queues", "edit", "reports", "--max-running", "none")
    assert unlimited == queue | {"max_ready": 10}


async def test_what_is_no_limit_is_refused(cli: Cli) -> None:
    for wrong in ("many", "-1", "1.5"):
        refused = await cli.run("queues", "edit", "reports", "--max-running", wrong)
        assert refused.exit_code == 2
    assert await cli.json("queues", "list") == []
