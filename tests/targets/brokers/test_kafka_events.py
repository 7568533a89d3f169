"""Events in a topic of a real Kafka: the records of a job are in one partition, in their order."""

import json
from collections import defaultdict

from evertick.contract.events import EventStreamRequest, KafkaSink
from evertick.store.database import Pool
from evertick.store.tenants import broker_connections
from evertick.store.tenants.broker_connections import ConnectionKey, Content
from evertick.usecases.context import TenantContext
from evertick.usecases.jobs.lifecycle import pause, resume
from evertick.usecases.tenants.events import put_stream, read
from roles.dispatching import SEAL
from roles.test_event_sinks import created, dispatching, send
from servers.kafka import KafkaServer
from targets.brokers.kafka_reading import create, read as read_topic

TOPIC = "evertick-events"


async def test_the_records_of_a_job_are_in_one_partition_in_their_order(
    database_url: str, pool: Pool, kafka_server: KafkaServer
) -> None:
    await create(kafka_server, TOPIC, partitions=4)
    tenant = TenantContext(pool, 1)
    settings = {"bootstrap_servers": [f"127.0.0.1:{kafka_server.port}"], "security_protocol": "PLAINTEXT"}
    content = Content("kafka", json.dumps(settings), {})
    assert await broker_connections.add(pool, ConnectionKey(1, "warehouse"), content, SEAL)
    await put_stream(tenant, EventStreamRequest(sink=KafkaSink(connection="warehouse", topic=TOPIC)))
    job_ids = await created(tenant, 5)
    for job_id in job_ids * 3:
        await pause(tenant, job_id)
        await resume(tenant, job_id)
    await created(tenant, 0)
    async with dispatching(database_url) as dispatcher:
        assert await send(dispatcher) == 1
    records = await read_topic(kafka_server, TOPIC)
    found = defaultdict(list)
    for record in sorted(records, key=lambda each: each.offset):
        headers = dict(record.headers)
        assert headers["ce_partitionkey"] == record.key
        assert json.loads(record.value)["job_id"] == record.key.decode()
        found[record.partition, record.key.decode()].append(headers["ce_id"].decode())
    assert len(found) == 5, "each job has one partition"
    expected = defaultdict(list)
    for event in (await read(tenant)).events:
        expected[event.partitionkey].append(event.id)
    assert {job_id: ids for (_, job_id), ids in found.items()} == expected
