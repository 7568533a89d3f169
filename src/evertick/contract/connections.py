"""The settings of a connection to a broker, without its secrets: one struct for each kind of broker.

Secrets are given apart, under the names that `SECRETS` lists for each kind.
"""

from typing import Annotated, Literal, TypeAlias

from msgspec import Meta, Struct

HOST_PATTERN = r"^[A-Za-z0-9_.:\[\]-]+$"

Text = Annotated[str, Meta(min_length=1, max_length=255)]
Host = Annotated[str, Meta(min_length=1, max_length=255, pattern=HOST_PATTERN, description="A name or an address.")]
Port = Annotated[int, Meta(ge=1, le=65_535)]
Certificates = Annotated[
    str,
    Meta(
        max_length=65_536,
        description="PEM of the authorities that may have signed the broker's certificate. If not set: those that the"
        " system trusts.",
    ),
]
Servers = Annotated[
    list[Annotated[str, Meta(min_length=1, max_length=262, pattern=r"^[A-Za-z0-9_.\[\]:-]+$", examples=["b1:9092"])]],
    Meta(min_length=1, max_length=32),
]


class KafkaConnection(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A Kafka cluster, version 2.1 or newer. Secret: `password`, for SASL."""

    bootstrap_servers: Annotated[Servers, Meta(description="`host:port` of some brokers; these name the others.")]
    security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = "SASL_SSL"
    sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] = "PLAIN"
    username: Text | None = None
    tls_ca: Certificates | None = None


class RabbitMqConnection(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A RabbitMQ, by AMQP 0-9-1. Secret: `password`."""

    host: Host
    port: Annotated[Port | None, Meta(description="If not set: 5671 with TLS, 5672 without.")] = None
    vhost: Text = "/"
    username: Text
    tls: bool = True
    tls_ca: Certificates | None = None


class NatsConnection(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """NATS servers with JetStream. Secrets: `password` with a username, `token`, or `creds`: the text of a .creds file.
    Without any, the servers must take clients that do not log in.
    """

    servers: Annotated[Servers, Meta(description="`host:port` of some servers; these may name others.")]
    username: Text | None = None
    tls: bool = True
    tls_ca: Certificates | None = None


class SqsConnection(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Amazon SQS, or what speaks its protocol. Secrets: `secret_access_key`, and `session_token` if there is one."""

    region: Annotated[str, Meta(pattern=r"^[a-z0-9-]{1,64}$", examples=["eu-central-1"])]
    access_key_id: Annotated[str, Meta(pattern=r"^[A-Za-z0-9_-]{1,128}$")]
    endpoint_url: (
        Annotated[
            str,
            Meta(
                max_length=2048,
                pattern=r"^https?://[^\s/?#@]+/?$",
                description="Where requests go. If not set: the endpoint of AWS for the region.",
            ),
        ]
        | None
    ) = None


Connection: TypeAlias = KafkaConnection | RabbitMqConnection | NatsConnection | SqsConnection

SECRETS: dict[str, frozenset[str]] = {
    "kafka": frozenset({"password"}),
    "rabbitmq": frozenset({"password"}),
    "nats": frozenset({"password", "token", "creds"}),
    "sqs": frozenset({"secret_access_key", "session_token"}),
}
"""The names of secrets that a connection of each kind may have."""
