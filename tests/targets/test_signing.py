"""Signatures that anybody's Standard Webhooks library can check."""

from base64 import b64encode
from datetime import UTC, datetime

import pytest
from hypothesis import given, strategies as st
from standardwebhooks import Webhook, WebhookVerificationError

from evertick.domain.errors import InvalidInput
from evertick.targets.http.signing import Secret, is_signed, sign

SECRET = Secret(b"0123456789abcdef01234567")
OTHER = Secret.generate()


def test_the_signature_is_the_published_example() -> None:
    secret = Secret.parse("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    body = b'{"test": 2432232314}'
    signature = sign([secret], "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, body)
    assert signature == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


def test_the_published_package_accepts_ours_with_either_secret_and_no_other() -> None:
    now = datetime.now(UTC)
    signature = sign([SECRET, OTHER], "key", int(now.timestamp()), b'{"a":1}')
    headers = {
        "webhook-id": "key",
        "webhook-timestamp": str(int(now.timestamp())),
        "webhook-signature": signature,
    }
    assert len(signature.split(" ")) == 2
    assert Webhook(SECRET.text).verify(b'{"a":1}', headers) == {"a": 1}
    assert Webhook(OTHER.text).verify(b'{"a":1}', headers) == {"a": 1}
    with pytest.raises(WebhookVerificationError):
        Webhook(Secret.generate().text).verify(b'{"a":1}', headers)
    with pytest.raises(WebhookVerificationError):
        Webhook(SECRET.text).verify(b'{"a":2}', headers)


@given(st.text(max_size=40), st.integers(0, 10**11), st.binary(max_size=200))
def test_what_was_signed_is_recognised_and_any_change_is_not(message_id: str, timestamp: int, body: bytes) -> None:
    header = sign([OTHER, SECRET], message_id, timestamp, body)
    assert is_signed([SECRET], message_id, timestamp, body, header=header)
    assert not is_signed([SECRET], message_id + "x", timestamp, body, header=header)
    assert not is_signed([SECRET], message_id, timestamp + 1, body, header=header)
    assert not is_signed([SECRET], message_id, timestamp, body + b"x", header=header)
    assert not is_signed([Secret(b"another secret of some bytes")], message_id, timestamp, body, header=header)


@pytest.mark.parametrize("header", ["", "v1", "v1,", "v1,é", "v1,\udce9", "v2,AAAA", "v1,AAAA " * 50, ",", " "])
def test_headers_without_a_signature_of_ours_are_not_signed(header: str) -> None:
    assert not is_signed([SECRET], "key", 1, b"", header=header)


def test_another_version_of_our_very_signature_does_not_count() -> None:
    assert not is_signed([SECRET], "key", 1, b"", header=sign([SECRET], "key", 1, b"").replace("v1,", "v1a,"))


def test_secrets_come_back_from_their_text_and_hide_otherwise() -> None:
    assert Secret.parse(OTHER.text) == OTHER
    assert Secret.generate() != Secret.generate()
    assert OTHER.text.removeprefix("whsec_") not in repr(OTHER)
    assert repr(OTHER.key) not in repr(OTHER)


@pytest.mark.parametrize(
    "text",
    ["", "whsec_", "whsec_!!!!", "whsec_AAAA", b64encode(bytes(32)).decode(), f"whsec_{b64encode(bytes(65)).decode()}"],
)
def test_other_texts_are_no_secrets(text: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        Secret.parse(text)
    assert refused.value.field == "secret"
