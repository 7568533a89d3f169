"""A PostgreSQL as managed services run it: TLS with an authority of its own, passwords, a role without privileges."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

import asyncpg
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from evertick.store.server.embedded import SUPERUSER
from evertick.store.server.programs import find_programs
from ports import free_port
from postgres import DEBIAN_PROGRAMS

ROLE = DATABASE = "plain"
START_SECONDS = 300
_FROM, _UNTIL = datetime(2020, 1, 1, tzinfo=UTC), datetime(2099, 1, 1, tzinfo=UTC)


class SecuredServer:
    """Listens as `localhost`, for which it has a certificate. Roles log in with a password."""

    def __init__(self, data_dir: Path) -> None:
        self._programs = find_programs(data_dir.parent, DEBIAN_PROGRAMS)
        self._data_dir = data_dir
        self._cluster = data_dir / "postgres"
        self._port = free_port()
        data_dir.mkdir()
        data_dir.chmod(0o711)
        self._programs.own(data_dir)
        self.authority = data_dir / "authority.pem"
        """The certificate of whoever signed the server's."""
        self._key, self._certificate = data_dir / "server.key", data_dir / "server.pem"

    def start(self) -> None:
        access = ("--auth-local=trust", "--auth-host=scram-sha-256")
        options = ("-U", SUPERUSER, *access, "--encoding=UTF8", "--locale=C", "--no-sync")
        self._programs.run_checked("initdb", "-D", str(self._cluster), *options, cwd=self._data_dir)
        write_certificates(self.authority, self._certificate, self._key)
        self._key.chmod(0o600)
        self._programs.own(self._key)
        settings = {
            "listen_addresses": "127.0.0.1",
            "port": str(self._port),
            "unix_socket_directories": str(self._cluster),
            "ssl": "on",
            "ssl_cert_file": str(self._certificate),
            "ssl_key_file": str(self._key),
            "fsync": "off",
        }
        words = " ".join(f"-c {name}={value}" for name, value in settings.items())
        log = ("-l", str(self._cluster / "server.log"))
        arguments = ("-D", str(self._cluster), "-w", "-t", str(START_SECONDS), *log, "-o", words)
        self._programs.run_checked("pg_ctl", "start", *arguments, cwd=self._data_dir)

    def stop(self) -> None:
        self._programs.run("pg_ctl", "stop", "-D", str(self._cluster), "-m", "immediate", cwd=self._data_dir)

    async def admin(self, statement: str, database: str = DATABASE) -> None:
        url = f"postgresql://{SUPERUSER}@/{database}?host={self._cluster}&port={self._port}"
        connection = await asyncpg.connect(url)
        try:
            await connection.execute(statement)
        finally:
            await connection.close()

    async def change_password(self, password: str) -> None:
        await self.admin(f"ALTER ROLE {ROLE} PASSWORD '{password}'")

    def url(self, password: str | None = None, *, host: str = "localhost", authority: Path | None = None) -> str:
        """For the role, with a check of the certificate."""
        user = ROLE if password is None else f"{ROLE}:{password}"
        tls = f"sslmode=verify-full&sslrootcert={authority or self.authority}"
        return f"postgresql://{user}@{host}:{self._port}/{DATABASE}?{tls}"


@asynccontextmanager
async def secured_server(data_dir: Path, password: str) -> AsyncIterator[SecuredServer]:
    """A server with a role that owns a database, and nothing else."""
    if not DEBIAN_PROGRAMS.exists():  # the embedded one is built without TLS
        pytest.skip(
            f"NOT TESTED WITH TLS: no PostgreSQL in {DEBIAN_PROGRAMS}; on Debian, apt-get install postgresql-15"
        )
    server = SecuredServer(data_dir)
    try:
        server.start()
        await server.admin(f"CREATE ROLE {ROLE} LOGIN PASSWORD '{password}'", "postgres")
        await server.admin(f"CREATE DATABASE {DATABASE} OWNER {ROLE}", "postgres")
        yield server
    finally:
        server.stop()


def write_certificates(authority: Path, certificate: Path, key: Path) -> None:
    """A new authority, and what it signed for `localhost`."""
    authority_key, server_key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "authority")])
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "server")])
    own = (
        _certificate(name, name, authority_key)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(authority_key, hashes.SHA256())
    )
    signed = (
        _certificate(name, subject, server_key)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    authority.write_bytes(own.public_bytes(serialization.Encoding.PEM))
    certificate.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
    key.write_bytes(
        server_key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )


def _certificate(issuer: x509.Name, subject: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .issuer_name(issuer)
        .subject_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(_FROM)
        .not_valid_after(_UNTIL)
    )
