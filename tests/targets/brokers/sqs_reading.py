"""Queues of an SQS of tests, moto or ElasticMQ: created and read over its plain protocol."""

import json
from typing import Any

import aiohttp

from servers.aws import REGION, AwsServer
from servers.sqs import SqsServer

KEY_ID = "AKIDEXAMPLE"


async def call(server: AwsServer | SqsServer, action: str, **fields: Any) -> dict[str, Any]:
    """Neither looks at the signature."""
    credential = f"AWS4-HMAC-SHA256 Credential={KEY_ID}/20260101/{REGION}/sqs/aws4_request"
    headers = {
        "content-type": "application/x-amz-json-1.0",
        "x-amz-target": f"AmazonSQS.{action}",
        "authorization": credential,
    }
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{server.url}/", data=json.dumps(fields), headers=headers) as answer,
    ):
        found: dict[str, Any] = json.loads(await answer.read() or b"{}")
        assert answer.status == 200, found
        return found


async def create_queue(server: AwsServer | SqsServer, name: str) -> str:
    options = {"FifoQueue": "true"} if name.endswith(".fifo") else {}
    return str((await call(server, "CreateQueue", QueueName=name, Attributes=options))["QueueUrl"])


async def read_queue(server: AwsServer | SqsServer, url: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    while messages := (
        await call(
            server,
            "ReceiveMessage",
            QueueUrl=url,
            MaxNumberOfMessages=10,
            MessageAttributeNames=["All"],
            AttributeNames=["All"],
        )
    ).get("Messages"):
        found += messages
        for each in messages:
            await call(server, "DeleteMessage", QueueUrl=url, ReceiptHandle=each["ReceiptHandle"])
    return found
