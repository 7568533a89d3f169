"""On default settings a tenant beside the host cannot make the server call its own machine and read the answer."""

from pathlib import Path

import httpx
from aiohttp import web

from engine import until
from hostile.server import up

SECRET = "what only this machine may read"


async def test_a_second_tenant_reads_nothing_of_the_servers_own_machine(data_dir: Path, tmp_path: Path) -> None:
    visits: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        visits.append(request.path)
        return web.Response(text=SECRET)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    inside = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        async with up(tmp_path, "--data-dir", str(data_dir)) as server:
            # Who tries it out on one machine, alone, may call that machine.
            async with server.client() as host:
                assert (await _ended(host, f"{inside}/host"))["status"] == "success"
            assert visits == ["/host"]
            async with server.client(await server.tenant("second")) as tenant:
                run = await _ended(tenant, f"{inside}/tenant")
    finally:
        await runner.cleanup()
    assert visits == ["/host"]
    assert run["status"] == "dead"
    assert SECRET not in str(run)
    assert "not allowed" in str(run) or "not public" in str(run)


async def _ended(client: httpx.AsyncClient, url: str) -> dict[str, object]:
    """The run of a job that calls a URL, once it has ended."""
    job = {"schedule": "manual", "target": {"type": "http", "url": url}, "max_retries": 0}
    created = await client.post("/jobs", json=job)
    assert created.status_code == 201, created.text
    triggered = await client.post(f"/jobs/{created.json()['job_id']}/trigger", json={})
    path = f"/runs/{triggered.json()['run_id']}"

    async def has_ended() -> bool:
        return (await client.get(path)).json()["status"] in {"success", "dead", "cancelled"}

    await until(has_ended)
    run: dict[str, object] = (await client.get(path)).json()
    return run
