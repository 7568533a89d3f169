"""The brokers of a session. Each test uses names of its own in them, and leaves them running."""

from collections.abc import Iterator

import pytest

from servers.aws import AwsServer
from servers.kafka import KafkaServer
from servers.nats import NatsServer
from servers.rabbitmq import RabbitMqServer


@pytest.fixture(scope="session")
def kafka_server() -> Iterator[KafkaServer]:
    with KafkaServer.running() as server:
        yield server


@pytest.fixture(scope="session")
def nats_server() -> Iterator[NatsServer]:
    with NatsServer.running() as server:
        yield server


@pytest.fixture(scope="session")
def rabbitmq_server() -> Iterator[RabbitMqServer]:
    with RabbitMqServer.running() as server:
        yield server


@pytest.fixture(scope="session")
def aws_server() -> Iterator[AwsServer]:
    with AwsServer.running() as server:
        yield server
