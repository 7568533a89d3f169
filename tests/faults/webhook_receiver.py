"""A webhook receiver for fault tests. It logs each delivery as one line, in the format of the workers' handlers."""

import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from aiohttp import web


class WebhookReceiver:
    """Answers 200 to every request, and counts. `serves`: the only tenant that should deliver here."""

    def __init__(self, log: Path, serves: str | None) -> None:
        self.url = ""
        self.count = 0
        self._log = log
        self._serves = serves

    async def handle(self, request: web.Request) -> web.Response:
        payload = await request.json()
        line = {
            "run_id": request.headers["Evertick-Run-Id"],
            "idempotency_key": request.headers["Idempotency-Key"],
            "token": f"0.{request.headers['Evertick-Fencing-Token']}",
            "attempt": int(request.headers["Evertick-Attempt"]),
            "at_us": time.time_ns() // 1000,
            "worker": "webhooks",
            "owner": None if payload is None else payload["owner"],
            "serves": self._serves,
        }
        with self._log.open("a", encoding="utf-8") as log:
            log.write(json.dumps(line) + "\n")
        self.count += 1
        return web.Response()


@asynccontextmanager
async def receiving(folder: Path, serves: str | None = None) -> AsyncIterator[WebhookReceiver]:
    receiver = WebhookReceiver(folder / "hooks.receipts", serves)
    app = web.Application()
    app.router.add_post("/", receiver.handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    receiver.url = f"http://127.0.0.1:{runner.addresses[0][1]}/"
    try:
        yield receiver
    finally:
        await runner.cleanup()
