"""Connections to message brokers, which a tenant names once, and its jobs' targets use by name.

Each type of broker has one struct of settings, which can be read back, and the names of its secrets, which cannot. The
messages of the API are made of them.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import asdict

from evertick.contract import patterns
from evertick.contract.annotations import CURSOR, Limit, Schema, Time, words
from evertick.contract.broker_targets import BrokerType
from evertick.contract.derived import lenient
from evertick.contract.misfits import fault_of
from evertick.contract.reading import whole_numbers
from evertick.domain.errors import Fault, InvalidFields
from evertick.domain.job.faults import kind_of

MAX_CONNECTIONS = 100
"""Of one tenant: a request that creates jobs reads the names of all."""
SECRET_MAX_LENGTH = 16_384

Text = Annotated[str, Meta(min_length=1, max_length=255, pattern=patterns.STORABLE)]
Host = Annotated[
    str,
    Meta(min_length=1, max_length=255, pattern=patterns.BROKER_HOST, description="A name or an address."),
]
Port = Annotated[int, Meta(ge=1, le=65_535)]
Certificates = Annotated[
    str,
    Meta(
        max_length=65_536,
        pattern=patterns.STORABLE,
        description="PEM of the authorities that may have signed the broker's certificate. If not set: those that the"
        " system trusts.",
    ),
]
Servers = Annotated[
    list[Annotated[str, Meta(min_length=1, max_length=262, pattern=patterns.BROKER_SERVER, examples=["b1:9092"])]],
    Meta(min_length=1, max_length=32),
]
Secret = Annotated[str, Meta(max_length=SECRET_MAX_LENGTH, pattern=patterns.STORABLE)]


class _Settings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Settings of a connection, without its secrets."""


class KafkaConnection(_Settings, frozen=True, kw_only=True):
    """A Kafka cluster, version 2.1 or newer. Secret: `password`, for SASL."""

    bootstrap_servers: Annotated[Servers, Meta(description="`host:port` of some brokers; these name the others.")]
    security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = "SASL_SSL"
    sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] = "PLAIN"
    username: Text | None = None
    tls_ca: Certificates | None = None


class RabbitMqConnection(_Settings, frozen=True, kw_only=True):
    """A RabbitMQ, by AMQP 0-9-1. Secret: `password`."""

    host: Host
    port: Annotated[Port | None, Meta(description="If not set: 5671 with TLS, 5672 without.")] = None
    other_nodes: (
        Annotated[
            Servers,
            Meta(
                description="`host` or `host:port` of other nodes of the cluster. A connection goes to the first node"
                " that takes it."
            ),
        ]
        | None
    ) = None
    vhost: Text = "/"
    username: Text
    tls: bool = True
    tls_ca: Certificates | None = None


class RedisStreamConnection(_Settings, frozen=True, kw_only=True):
    """A Redis server, version 6.2 or newer. Secret: `password`."""

    host: Host
    port: Port = 6379
    database: Annotated[int, Meta(ge=0, le=65_535)] = 0
    replicas: Annotated[
        int,
        Meta(
            ge=0,
            le=16,
            description="So many replicas must have a message before it counts as stored (`WAIT`). Otherwise it may be"
            " lost when a replica takes over.",
        ),
    ] = 0
    username: Text | None = None
    tls: bool = True
    tls_ca: Certificates | None = None


class NatsConnection(_Settings, frozen=True, kw_only=True):
    """NATS servers with JetStream. Secrets: `password` with a username, `token`, or `creds`: the text of a .creds file.
    Without any, the servers must take clients that do not log in.
    """

    servers: Annotated[Servers, Meta(description="`host:port` of some servers; these may name others.")]
    username: Text | None = None
    tls: bool = True
    tls_ca: Certificates | None = None


class SqsConnection(_Settings, frozen=True, kw_only=True):
    """Amazon SQS, or what speaks its protocol. Secrets: `secret_access_key`, and `session_token` if there is one."""

    region: Annotated[str, Meta(pattern=r"^[a-z0-9-]{1,64}$", examples=["eu-central-1"])]
    access_key_id: Annotated[str, Meta(pattern=r"^[A-Za-z0-9_-]{1,128}$")]
    endpoint_url: (
        Annotated[
            str,
            Meta(
                max_length=2048,
                pattern=patterns.ENDPOINT,
                description="Where requests go. If not set: the endpoint of AWS for the region.",
            ),
        ]
        | None
    ) = None


SETTINGS: dict[str, type[_Settings]] = {
    BrokerType.KAFKA: KafkaConnection,
    BrokerType.RABBITMQ: RabbitMqConnection,
    BrokerType.REDIS_STREAM: RedisStreamConnection,
    BrokerType.NATS: NatsConnection,
    BrokerType.SQS: SqsConnection,
}
SECRETS: dict[str, tuple[str, ...]] = {
    BrokerType.KAFKA: ("password",),
    BrokerType.RABBITMQ: ("password",),
    BrokerType.REDIS_STREAM: ("password",),
    BrokerType.NATS: ("password", "token", "creds"),
    BrokerType.SQS: ("secret_access_key", "session_token"),
}
"""The names of secrets that a connection of each type may have."""


_Name = Annotated[str, Meta(pattern=patterns.CONNECTION, description="Unique among the tenant's connections.")]


def _request(kind: str) -> type[Struct]:
    name = SETTINGS[kind].__name__
    secrets = msgspec.defstruct(
        f"{name}Secrets", [(each, Secret | None, None) for each in SECRETS[kind]], forbid_unknown_fields=True
    )
    return msgspec.defstruct(
        f"{name}Request",
        [
            ("name", _Name | None, None),
            ("settings", SETTINGS[kind]),
            ("secrets", secrets, msgspec.field(default_factory=secrets)),
        ],
        kw_only=True,
        forbid_unknown_fields=True,
        tag_field="type",
        tag=str(kind),
        namespace={"__doc__": SETTINGS[kind].__doc__},
    )


REQUESTS: dict[str, type[Struct]] = {kind: _request(kind) for kind in SETTINGS}


@dataclass(frozen=True, slots=True)
class NewConnection:
    """A connection as its owner wants it. A secret that is empty is to be removed."""

    name: str | None
    type: str
    settings: Struct
    secrets: Mapping[str, str] = field(repr=False)


def read_connection(fields: object) -> NewConnection:
    """A connection from its fields. InvalidFields says what is wrong with them, without repeating any."""
    if not isinstance(fields, Mapping):
        raise InvalidFields([Fault("", f"must be an object, not {kind_of(fields)}")])
    given = {name: value for name, value in fields.items() if value is not None}
    kind = given.get("type")
    if not isinstance(kind, str) or kind not in REQUESTS:
        problem = "is required:" if kind is None else "must be"
        raise InvalidFields([Fault("/type", f"{problem} one of {', '.join(REQUESTS)}")])
    try:
        found: Any = msgspec.convert(whole_numbers(given), REQUESTS[kind])
    except msgspec.ValidationError as error:
        raise InvalidFields([fault_of(error, REQUESTS[kind])]) from None
    secrets = {name: text for name, text in asdict(found.secrets).items() if text is not None}
    return NewConnection(found.name, kind, found.settings, secrets)


def settings_in_force(kind: str, settings: str) -> dict[str, Any]:
    """Stored settings, whatever release wrote them, with the defaults of this one."""
    return asdict(msgspec.json.decode(settings, type=lenient(SETTINGS[kind])))


_WHO_GETS_SECRETS = (
    *("bootstrap_servers", "servers", "host", "port", "other_nodes", "endpoint_url", "region"),
    *("security_protocol", "sasl_mechanism", "tls", "tls_ca"),
)


def has_moved(before: Mapping[str, Any], after: Mapping[str, Any]) -> bool:
    """Whether others may get the secrets of a connection: another server, or who listens on the way."""
    return any(before.get(name) != after.get(name) for name in _WHO_GETS_SECRETS)


def unused_in(kind: str, settings: Mapping[str, Any], secrets: Collection[str]) -> list[str]:
    """What a connection has and does not use: its owner may believe that it logs in, or checks a certificate."""
    protocol = str(settings.get("security_protocol", "SASL_SSL"))  # Kafka has it
    rules = (
        (("tls_ca",), not protocol.endswith("SSL"), f"with security_protocol {protocol}"),
        (("username", "password"), not protocol.startswith("SASL"), f"with security_protocol {protocol}"),
        (("tls_ca",), settings.get("tls") is False, "without tls"),
        (("username",), kind == BrokerType.REDIS_STREAM and "password" not in secrets, "without password"),
        (("password",), kind == BrokerType.NATS and settings.get("username") is None, "without username"),
        (("username", "password", "token"), "creds" in secrets, "beside creds"),
        (("username", "password"), "token" in secrets, "beside token"),
    )
    given = {*secrets, *(name for name, value in settings.items() if value is not None)}
    found = {name: why for names, is_so, why in reversed(rules) if is_so for name in names if name in given}
    return [f"{name} is not used {why}" for name, why in sorted(found.items())]


class BrokerConnection(Struct, frozen=True, kw_only=True):
    """A connection to a message broker. `secrets` are the names of those that are set: their values are never shown."""

    name: str
    type: Annotated[str, words(BrokerType)]
    settings: dict[str, Any]
    secrets: tuple[str, ...]
    created_at: Time
    updated_at: Time


class ConnectionCheck(Struct, frozen=True, kw_only=True):
    """What a test of a connection found: what answers, or why it cannot be used."""

    is_usable: bool
    detail: str
    json_schema: ClassVar[Schema] = {"examples": [{"is_usable": True, "detail": "Redis 7.0.15"}]}


class ConnectionsQuery(Struct, forbid_unknown_fields=True):
    limit: Limit = 50
    cursor: Annotated[_Name, CURSOR] | None = None
