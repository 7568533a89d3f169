"""Messages in the frames of AMQP 0-9-1, as RabbitMQ gets them. pamqp would take three times as long as all else."""

import struct
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from evertick.targets.brokers.publisher import Envelope, PublishFailed

PUBLISHING = 2
"""The channel that messages go by."""
FRAME_OVERHEAD = 8
FRAME_END = 0xCE
MAX_SHORT = 255

_FRAME_HEAD = struct.Struct(">BHI")
_BASIC_HEADER = struct.Struct(">HHQH")
_FLAGS = 1 << 15 | 1 << 13 | 1 << 12 | 1 << 7  # content_type, headers, delivery_mode, message_id
_MANDATORY, _PERSISTENT = b"\x01", b"\x02"
_ACK = struct.Struct(">BHIHHQBB")
_ACK_KIND = (1, PUBLISHING, 13, 60, 80)
ACK_SIZE = _ACK.size
_SIZES = [length.to_bytes(4).decode("latin-1") for length in range(4096)]


class Confirm(NamedTuple):
    """The broker has this message. `multiple`: and all before it."""

    delivery_tag: int
    multiple: bool


def read_ack(buffer: bytes, at: int) -> Confirm | None:
    """The confirm of messages in a frame, of which there is one for each few messages. None: it is another frame."""
    *kind, tag, bits, end = _ACK.unpack_from(buffer, at)
    return Confirm(tag, bool(bits & 1)) if tuple(kind) == _ACK_KIND and end == FRAME_END else None


class _Form(NamedTuple):
    """What the messages of one envelope have in common: properties and headers before those that differ, and what is
    before the value of each of those, followed by two places, for the size of the value and for the value.
    """

    content_type: bytes
    fields: bytes
    heads: list[str]


@lru_cache(maxsize=1024)
def publish_frame(exchange: str, routing_key: str) -> bytes:
    """The frame that a message begins with."""
    return _frame(1, b"\x00\x3c\x00\x28\x00\x00" + _short(exchange) + _short(routing_key) + _MANDATORY)


def header_frame(envelope: Envelope, values: Sequence[str], size: int, message_id: str) -> bytes:
    """The frame of a message that says how large its body is, with all that describes it."""
    content_type, fields, heads = _form(envelope)
    described = _fields(heads, values)
    return _frame(
        2,
        b"".join(
            (
                _BASIC_HEADER.pack(60, 0, size, _FLAGS),
                content_type,
                (len(fields) + len(described)).to_bytes(4),
                fields,
                described,
                _PERSISTENT,
                _short(message_id),
            )
        ),
    )


@lru_cache(maxsize=1024)
def _form(envelope: Envelope) -> _Form:
    fixed = {f"cloudEvents_{name}": value for name, value in envelope.fixed.items()}
    headers = {**envelope.headers, **fixed}
    fields = b"".join([_head(name) + _long(value) for name, value in headers.items()])
    heads = [
        text for name in envelope.written_names("cloudEvents_") for text in (_head(name).decode("latin-1"), "", "")
    ]
    return _Form(_short(envelope.content_type), fields, heads)


def _fields(heads: list[str], values: Sequence[str]) -> bytes:
    if not "".join(values).isascii():
        return _fields_apart(heads, values)
    try:
        # A text of ASCII has as many bytes as characters, so all is encoded once.
        words = heads.copy()
        words[1::3] = [_SIZES[len(value)] for value in values]
        words[2::3] = values
    except IndexError:  # a long one
        return _fields_apart(heads, values)
    return "".join(words).encode("latin-1")


def _fields_apart(heads: Sequence[str], values: Sequence[str]) -> bytes:
    return b"".join([head.encode("latin-1") + _long(value) for head, value in zip(heads[::3], values, strict=True)])


def body_frames(body: bytes, frame_max: int) -> bytes:
    most = frame_max - FRAME_OVERHEAD
    if 0 < len(body) <= most:
        return _frame(3, body)
    return b"".join([_frame(3, body[at : at + most]) for at in range(0, len(body), most)])


def _head(name: str) -> bytes:
    """The name of a header whose value is a text."""
    return _short(name) + b"S"


def _short(text: str) -> bytes:
    data = text.encode()
    if len(data) > MAX_SHORT:
        reason = f"{text[:40]}… has more than the {MAX_SHORT} bytes that AMQP has for it"
        raise PublishFailed(reason, retryable=False, is_broker_down=False)
    return len(data).to_bytes(1) + data


def _long(text: str) -> bytes:
    data = text.encode()
    return len(data).to_bytes(4) + data


def _frame(kind: int, payload: bytes) -> bytes:
    return b"%b%b%c" % (_FRAME_HEAD.pack(kind, PUBLISHING, len(payload)), payload, FRAME_END)
