"""Connections to message brokers, which a tenant names once and its jobs' targets use by name.

For each type of broker there is one struct of settings, which can be read back, and one of secrets, which cannot.
"""

import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any, ClassVar, TypeAlias

from msgspec import Meta, Struct

from evertick.contract import patterns
from evertick.contract.annotations import CURSOR, Limit, Schema, Time, accepted, checked, words
from evertick.contract.broker_targets import BrokerType, ConnectionName
from evertick.contract.reading import read_settings
from evertick.domain.errors import Fault, InvalidFields
from evertick.domain.job.checks import UNSTORABLE, WHY_UNSTORABLE
from evertick.domain.job.faults import Faults, kind_of

MAX_CONNECTIONS = 100
"""Of one tenant: a request to create a job reads the names of all."""
MAX_SERVERS = 16
MAX_LENGTH = 255
SECRET_MAX_LENGTH = 16_384
_is_server = re.compile(patterns.SERVER).fullmatch


class SaslMechanism(StrEnum):
    """How a client of Kafka authenticates."""

    PLAIN = "PLAIN"
    SCRAM_SHA_256 = "SCRAM-SHA-256"
    SCRAM_SHA_512 = "SCRAM-SHA-512"


def check_servers(servers: object, at: str, faults: Faults) -> None:
    if not isinstance(servers, list | tuple):
        faults.add(at, f"must be an array, not {kind_of(servers)}")
    elif not 1 <= len(servers) <= MAX_SERVERS:
        faults.add(at, f"must have 1 to {MAX_SERVERS} servers, not {len(servers)}")
    else:
        for index, server in enumerate(servers):
            if not isinstance(server, str) or len(server) > MAX_LENGTH or not _is_server(server):
                faults.add(f"{at}/{index}", "must be a host, or a host and its port, such as broker.example.com:9093")
            elif server.rpartition(":")[2].isdigit() and not 1 <= int(server.rpartition(":")[2]) <= 65_535:
                faults.add(f"{at}/{index}", "has a port that is not from 1 to 65535")


def check_storable(text: str, at: str, faults: Faults) -> None:
    if UNSTORABLE.search(text):
        faults.add(at, WHY_UNSTORABLE)


Servers = Annotated[
    tuple[Annotated[str, Meta(extra_json_schema={"pattern": patterns.SERVER, "maxLength": MAX_LENGTH})], ...],
    Meta(
        description="Hosts, each with its port unless that is the usual one.",
        extra_json_schema={"minItems": 1, "maxItems": MAX_SERVERS},
    ),
    checked(check_servers),
]
Text = Annotated[str, Meta(max_length=MAX_LENGTH), accepted(pattern=patterns.STORABLE), checked(check_storable)]
Secret = Annotated[
    str, Meta(max_length=SECRET_MAX_LENGTH), accepted(pattern=patterns.STORABLE), checked(check_storable)
]
Tls = Annotated[bool, Meta(description="Whether the connection is encrypted, and the server's certificate checked.")]
Certificate = Annotated[Secret, Meta(description="PEM of the authorities to trust; those of the system, unless given.")]


class _Settings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Of brokers that one reaches by host and port."""

    servers: Servers
    tls: Tls = True
    ca_certificate: Certificate | None = None
    username: Text | None = None


class _Secrets(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A secret that is not given stays as it is when a connection is replaced."""


class PasswordSecrets(_Secrets, frozen=True, kw_only=True):
    password: Secret | None = None


class KafkaSettings(_Settings, frozen=True, kw_only=True):
    """Without a user name there is no SASL. `servers` are those to begin with; the port is 9092 unless given."""

    sasl_mechanism: SaslMechanism = SaslMechanism.SCRAM_SHA_512


class RabbitmqSettings(_Settings, frozen=True, kw_only=True):
    """The servers are tried in order. The port is 5671 with TLS, 5672 without."""

    virtual_host: Text = "/"


class RedisStreamSettings(_Settings, frozen=True, kw_only=True):
    """The servers are tried in order, until one is found that accepts writes. The port is 6379 unless given."""

    database: Annotated[int, Meta(ge=0, le=65_535)] = 0


class NatsSettings(_Settings, frozen=True, kw_only=True):
    """The port is 4222 unless given."""


class NatsSecrets(_Secrets, frozen=True, kw_only=True):
    """A password with a user name, a token, or the content of a `.creds` file."""

    password: Secret | None = None
    token: Secret | None = None
    credentials: Secret | None = None


class SqsSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """`endpoint_url`: of a service that is compatible with SQS; that of AWS, unless given."""

    region: Text
    access_key_id: Text
    endpoint_url: (
        Annotated[str, Meta(max_length=2048), accepted(pattern=patterns.URL), checked(check_storable)] | None
    ) = None


class SqsSecrets(_Secrets, frozen=True, kw_only=True):
    secret_access_key: Secret | None = None
    session_token: Secret | None = None


class _Request(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="type"):
    name: Annotated[ConnectionName, Meta(description="Unique among the tenant's connections.")] | None = None


class KafkaConnection(_Request, frozen=True, kw_only=True, tag="kafka"):
    """A Kafka cluster."""

    settings: KafkaSettings
    secrets: PasswordSecrets = PasswordSecrets()


class RabbitmqConnection(_Request, frozen=True, kw_only=True, tag="rabbitmq"):
    """A RabbitMQ server or cluster."""

    settings: RabbitmqSettings
    secrets: PasswordSecrets = PasswordSecrets()


class RedisStreamConnection(_Request, frozen=True, kw_only=True, tag="redis_stream"):
    """A Redis server, or one with its replicas."""

    settings: RedisStreamSettings
    secrets: PasswordSecrets = PasswordSecrets()


class NatsConnection(_Request, frozen=True, kw_only=True, tag="nats"):
    """A NATS server or cluster with JetStream."""

    settings: NatsSettings
    secrets: NatsSecrets = NatsSecrets()


class SqsConnection(_Request, frozen=True, kw_only=True, tag="sqs"):
    """An account of Amazon SQS, in one region."""

    settings: SqsSettings
    secrets: SqsSecrets = SqsSecrets()


ConnectionRequest: TypeAlias = (
    KafkaConnection | RabbitmqConnection | RedisStreamConnection | NatsConnection | SqsConnection
)
CONNECTIONS: dict[str, type[ConnectionRequest]] = {
    "kafka": KafkaConnection,
    "rabbitmq": RabbitmqConnection,
    "redis_stream": RedisStreamConnection,
    "nats": NatsConnection,
    "sqs": SqsConnection,
}


class BrokerConnection(Struct, frozen=True, kw_only=True):
    """A connection to a message broker. `secrets` are the names of those that are set; their values are not shown."""

    name: str
    type: Annotated[str, words(BrokerType)]
    settings: dict[str, Any]
    secrets: tuple[str, ...]
    created_at: Time
    updated_at: Time


class ConnectionCheck(Struct, frozen=True, kw_only=True):
    """What a test of a connection found. `detail` says what, or why it cannot be used."""

    is_usable: bool
    detail: str
    json_schema: ClassVar[Schema] = {"examples": [{"is_usable": True, "detail": "Redis 7.0.15 answers"}]}


class ConnectionsQuery(Struct, forbid_unknown_fields=True):
    limit: Limit = 50
    cursor: Annotated[ConnectionName, CURSOR] | None = None


def read_connection(fields: object) -> ConnectionRequest:
    """A connection from its fields. InvalidFields lists every fault; none of them repeats a secret."""
    if not isinstance(fields, Mapping):
        raise InvalidFields([Fault("", f"must be an object, not {kind_of(fields)}")])
    kind = CONNECTIONS.get(str(fields.get("type")))
    if kind is None:
        problem = "is required:" if fields.get("type") is None else "must be"
        raise InvalidFields([Fault("/type", f"{problem} one of {', '.join(CONNECTIONS)}")])
    return read_settings(fields, kind)


