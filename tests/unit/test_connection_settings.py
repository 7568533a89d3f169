"""What the settings of a connection to a broker mean together."""

from typing import Any

import pytest

from evertick.contract.connections import has_moved, unused_in


@pytest.mark.parametrize(
    ("kind", "settings", "secrets", "unused"),
    [
        ("kafka", {"security_protocol": "SASL_SSL", "username": "u", "tls_ca": "c"}, ["password"], []),
        ("kafka", {"security_protocol": "SASL_PLAINTEXT", "username": "u", "tls_ca": "c"}, ["password"], ["tls_ca"]),
        ("kafka", {"security_protocol": "SSL", "username": "u"}, ["password"], ["password", "username"]),
        ("kafka", {"security_protocol": "PLAINTEXT", "username": None, "tls_ca": None}, [], []),
        ("rabbitmq", {"tls": True, "username": "u", "tls_ca": "c"}, ["password"], []),
        ("rabbitmq", {"tls": False, "username": "u", "tls_ca": "c"}, ["password"], ["tls_ca"]),
        ("redis_stream", {"tls": True, "username": "u"}, ["password"], []),
        ("redis_stream", {"tls": True, "username": None}, ["password"], []),
        ("redis_stream", {"tls": True, "username": "u"}, [], ["username"]),
        ("nats", {"tls": True, "username": "u"}, ["password"], []),
        ("nats", {"tls": True, "username": None}, ["password"], ["password"]),
        ("nats", {"tls": True, "username": "u"}, ["password", "token"], ["password", "username"]),
        ("nats", {"tls": True, "username": None}, ["token", "creds"], ["token"]),
        ("sqs", {"region": "eu-central-1", "access_key_id": "k"}, ["secret_access_key"], []),
    ],
)
def test_what_a_connection_has_and_does_not_use_is_named(
    kind: str, settings: dict[str, Any], secrets: list[str], unused: list[str]
) -> None:
    assert [text.partition(" is not used ")[0] for text in unused_in(kind, settings, secrets)] == unused


def test_another_node_may_get_the_secrets_of_a_connection() -> None:
    before = {"host": "a", "other_nodes": ["b"]}
    assert has_moved(before, {"host": "a", "other_nodes": ["b", "c"]})
    assert not has_moved(before, {**before, "vhost": "other"})
