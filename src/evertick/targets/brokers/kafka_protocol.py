"""The part of Kafka's protocol that a producer needs: requests, responses, batches of records, SASL.

Each request has one version, which Kafka 2.1 and all later releases have; none of them has tagged fields.
"""

import base64
import hashlib
import hmac
import secrets as random_secrets
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import google_crc32c

from evertick.targets.brokers.publisher import MAX_REMEMBERED

PRODUCE, METADATA, SASL_HANDSHAKE, SASL_AUTHENTICATE, INIT_PRODUCER_ID = 0, 3, 17, 36, 22
_VERSIONS = {PRODUCE: 7, METADATA: 4, SASL_HANDSHAKE: 1, SASL_AUTHENTICATE: 0, INIT_PRODUCER_ID: 0}
ALL_REPLICAS = -1
MAX_SEQUENCE = 0x7FFF_FFFF
"""Zero follows."""
MAX_ITERATIONS = 16_384
"""The most that Kafka takes for a user. A broker that asks for more would keep the process busy."""

_BATCH_HEAD = struct.Struct(">hiqqqhii")
_BATCH_PREFIX = struct.Struct(">qiibI")


def request(api: int, correlation_id: int, body: bytes) -> bytes:
    head = struct.pack(">hhi", api, _VERSIONS[api], correlation_id) + text("evertick") + body
    return len(head).to_bytes(4) + head


def text(value: str | None) -> bytes:
    if value is None:
        return b"\xff\xff"
    data = value.encode()
    return struct.pack(">h", len(data)) + data


class Reader:
    """Reads a response from its beginning to its end."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def number(self, size: int) -> int:
        return int.from_bytes(self._take(size), signed=True)

    def text(self) -> str | None:
        size = self.number(2)
        return None if size < 0 else self._take(size).decode()

    def data(self) -> bytes:
        return self._take(max(self.number(4), 0))

    def items(self) -> Iterator[int]:
        """One step for each item of an array."""
        count = self.number(4)
        if count > len(self._data):
            raise ValueError("an array that is longer than its message")
        return iter(range(count))

    def _take(self, size: int) -> bytes:
        piece = self._data[self._at : self._at + size]
        if len(piece) != size:
            raise ValueError("a message that ends too early")
        self._at += size
        return piece


# Metadata


@dataclass(frozen=True, slots=True)
class Topic:
    """`leaders` are the nodes of the partitions, by number; −1: none at the moment."""

    error: int
    leaders: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Metadata:
    brokers: Mapping[int, tuple[str, int]]
    topics: Mapping[str, Topic]
    cluster_id: str | None


def metadata_of(*topics: str) -> bytes:
    """Asks for topics, and lets none be created."""
    return struct.pack(">i", len(topics)) + b"".join(map(text, topics)) + b"\x00"


def read_metadata(data: bytes) -> Metadata:
    reader = Reader(data)
    reader.number(4)  # throttled for so long
    brokers = {}
    for _ in reader.items():
        node, host, port = reader.number(4), reader.text(), reader.number(4)
        reader.text()  # rack
        brokers[node] = (host or "", port)
    cluster_id = reader.text()
    reader.number(4)  # controller
    topics: dict[str, Topic] = {}
    for _ in reader.items():
        error, name = reader.number(2), reader.text()
        reader.number(1)  # internal
        leaders = {}
        for _ in reader.items():
            reader.number(2)
            partition = reader.number(4)
            leaders[partition] = reader.number(4)
            for _ in reader.items():  # replicas
                reader.number(4)
            for _ in reader.items():  # in sync
                reader.number(4)
        topics[name or ""] = Topic(error, tuple(leaders[partition] for partition in sorted(leaders)))
    return Metadata(brokers, topics, cluster_id)


# Producing


def read_producer_id(data: bytes) -> tuple[int, int, int]:
    """Error, producer id, epoch."""
    reader = Reader(data)
    reader.number(4)
    return reader.number(2), reader.number(8), reader.number(2)


def new_producer() -> bytes:
    return text(None) + struct.pack(">i", 60_000)


def produce(topic: str, partition: int, batch: bytes, timeout_ms: int) -> bytes:
    head = text(None) + struct.pack(">hii", ALL_REPLICAS, timeout_ms, 1) + text(topic)
    return head + struct.pack(">iii", 1, partition, len(batch)) + batch


def read_produced(data: bytes) -> tuple[int, int]:
    """Error and first offset, of a request with one partition."""
    reader = Reader(data)
    reader.number(4)
    reader.text()
    reader.number(4)
    reader.number(4)
    return reader.number(2), reader.number(8)


def varint(value: int) -> bytes:
    value = (value << 1) ^ (value >> 63)
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)


_VARINTS = [varint(value) for value in range(4096)]
_SIZES = [data.decode("latin-1") for data in _VARINTS]
_NONE = varint(-1)


def _size(length: int) -> bytes:
    return _VARINTS[length] if length < 4096 else varint(length)


def _sized(data: bytes) -> bytes:
    return _size(len(data)) + data


class HeaderForm:
    """How the headers of records are written of which some have the same value in all records."""

    __slots__ = ("_heads", "_opening")

    def __init__(self, fixed: Mapping[str, str], names: Sequence[str]) -> None:
        pairs = [_sized(name.encode()) + _sized(content.encode()) for name, content in fixed.items()]
        self._opening = _size(len(fixed) + len(names)) + b"".join(pairs)
        # Each is followed by two places, for the size of the content and for the content.
        self._heads = [text for name in names for text in (_sized(name.encode()).decode("latin-1"), "", "")]

    def written(self, contents: Sequence[str]) -> bytes:
        """With these contents of the headers that differ."""
        if not "".join(contents).isascii():
            return self._written_apart(contents)
        try:
            # A text of ASCII has as many bytes as characters, so all is encoded once.
            words = self._heads.copy()
            words[1::3] = [_SIZES[len(each)] for each in contents]
            words[2::3] = contents
        except IndexError:  # a long one
            return self._written_apart(contents)
        return self._opening + "".join(words).encode("latin-1")

    def _written_apart(self, contents: Sequence[str]) -> bytes:
        pairs = zip(self._heads[::3], contents, strict=True)
        return self._opening + b"".join([head.encode("latin-1") + _sized(each.encode()) for head, each in pairs])


def record(key: bytes | None, value: bytes, headers: bytes) -> bytes:
    """A record with its written headers, without what depends on its place in a batch."""
    return b"".join((_NONE if key is None else _sized(key), _sized(value), headers))


def record_batch(records: Sequence[bytes], at_ms: int, producer_id: int, epoch: int, sequence: int) -> bytes:
    parts: list[bytes] = []
    for offset, each in enumerate(records):
        place = b"\x00\x00" + _size(offset)  # no attributes; the batch's own timestamp
        parts += (_size(len(place) + len(each)), place, each)
    count = len(records)
    checked = _BATCH_HEAD.pack(0, count - 1, at_ms, at_ms, producer_id, epoch, sequence, count) + b"".join(parts)
    return _BATCH_PREFIX.pack(0, len(checked) + 9, -1, 2, google_crc32c.value(checked)) + checked


def partition_hash(key: bytes) -> int:
    """Murmur2 as Java's producer has it, so that a key is in the same partition whoever wrote it."""
    return _remembered_hash(key) if len(key) <= MAX_REMEMBERED else _murmur2(key)


def _murmur2(key: bytes) -> int:
    m, mask = 0x5BD1E995, 0xFFFF_FFFF
    h = 0x9747B28C ^ len(key)
    whole = len(key) & ~3
    for at in range(0, whole, 4):
        k = int.from_bytes(key[at : at + 4], "little") * m & mask
        k = (k ^ k >> 24) * m & mask
        h = h * m & mask ^ k
    if whole < len(key):
        h = (h ^ int.from_bytes(key[whole:], "little")) * m & mask
    h = (h ^ h >> 13) * m & mask
    return (h ^ h >> 15) & 0x7FFF_FFFF


_remembered_hash = lru_cache(maxsize=65_536)(_murmur2)


# SASL


def read_mechanisms(data: bytes) -> tuple[int, list[str]]:
    reader = Reader(data)
    return reader.number(2), [reader.text() or "" for _ in reader.items()]


def read_authenticated(data: bytes) -> tuple[int, str | None, bytes]:
    reader = Reader(data)
    return reader.number(2), reader.text(), reader.data()


def sasl_token(token: bytes) -> bytes:
    return len(token).to_bytes(4) + token


class Scram:
    """The client's side of SCRAM (RFC 5802)."""

    def __init__(self, mechanism: str, username: str, password: str) -> None:
        self._hash = mechanism.removeprefix("SCRAM-").lower().replace("sha-", "sha")
        self._password = password.encode()
        name = username.replace("=", "=3D").replace(",", "=2C")
        self._nonce = random_secrets.token_urlsafe(24)
        self._first = f"n={name},r={self._nonce}"
        self._signature = b""

    def first(self) -> bytes:
        return f"n,,{self._first}".encode()

    def final(self, challenge: bytes) -> bytes:
        fields = _fields(challenge)
        iterations = int(fields["i"])
        if not fields["r"].startswith(self._nonce) or iterations > MAX_ITERATIONS:
            raise ValueError("a challenge that is not ours")
        salted = hashlib.pbkdf2_hmac(self._hash, self._password, base64.b64decode(fields["s"]), iterations)
        client_key = self._hmac(salted, b"Client Key")
        without_proof = f"c=biws,r={fields['r']}"
        signed = b",".join((self._first.encode(), challenge, without_proof.encode()))
        signature = self._hmac(hashlib.new(self._hash, client_key).digest(), signed)
        self._signature = self._hmac(self._hmac(salted, b"Server Key"), signed)
        proof = bytes(one ^ other for one, other in zip(client_key, signature, strict=True))
        return f"{without_proof},p={base64.b64encode(proof).decode()}".encode()

    def verify(self, answer: bytes) -> None:
        if not hmac.compare_digest(base64.b64decode(_fields(answer)["v"]), self._signature):
            raise ValueError("a server that does not know the password")

    def _hmac(self, key: bytes, message: bytes) -> bytes:
        return hmac.digest(key, message, self._hash)


def _fields(message: bytes) -> dict[str, str]:
    return dict(part.split("=", 1) for part in message.decode().split(","))
