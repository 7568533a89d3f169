"""The scenario `brokers` with each real broker, on a database of its own with all that makes it durable. On a quiet
machine, with MESSAGES=100000, it prints the figures of docs/performance.md.
"""

import asyncio
import json
import os
import sys

import pytest

from bench.commands import assert_all_ran_once
from faults.processes import EVERTICK
from real_brokers import DESTINATION, KINDS, NatsBroker, real_broker
from servers.rabbitmq import PASSWORD, USER

MESSAGES = int(os.environ.get("MESSAGES", "20000"))


@pytest.mark.campaign
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "sqs"])
async def test_a_dispatcher_publishes_all_to_a_broker(kind: str) -> None:
    async with real_broker(kind) as broker:
        name = "redis" if kind == "redis_stream" else kind
        destination = str(broker.address["subject"]) if isinstance(broker, NatsBroker) else DESTINATION
        options = ["--broker", name, "--address", f"127.0.0.1:{broker.server.port}", "--destination", destination]
        options += ["--messages", str(MESSAGES), "--username", USER, "--password", PASSWORD, "--json"]
        before = broker.cpu_seconds()
        process = await asyncio.create_subprocess_exec(EVERTICK, "bench", "brokers", *options, stdout=-1)
        said, _ = await process.communicate()
        used = broker.cpu_seconds() - before
    assert process.returncode == 0
    found = json.loads(said)
    assert_all_ran_once(found, MESSAGES)
    cpu = {**found["cpu_us_per_run"], "broker": round(used / MESSAGES * 1e6, 1)}
    sys.stdout.write(f"{name}: {found['rate_per_second']}/s, µs of CPU time for each message: {cpu}\n")
