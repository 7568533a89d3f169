"""Reads a crontab: which commands it runs when, and what of it a scheduler that is not cron cannot do.

The rules are those of Vixie's cron and its heirs. Lines stand for themselves, nothing continues on the next. A setting
holds for the entries below it. The first `%` of a command ends it, and what follows is its input, line by line.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from evertick.domain.errors import InvalidSchedule
from evertick.domain.schedule import cron
from evertick.domain.schedule.describe.english import listed
from evertick.domain.schedule.zone import zone

_BLANKS = re.compile(r"[ \t]+")
_SETTING = re.compile(r"""(?:"([^"]+)"|'([^']+)'|([^ \t"'=]+))[ \t]*=[ \t]*(.*)""")
_PERCENT = re.compile(r"\\\\|\\%|%")
_RANDOM = re.compile(r"(\d*)~(\d*)", re.ASCII)
_REDIRECTION = re.compile(r"\d?>+\s*\S+")
_FOLDERS = re.compile(r"[^\s/]*/(?=[^\s/])")
_NOT_WORD = re.compile(r"[\W_]+")

_NAME_LENGTH = 60
_REBOOT = "@reboot"
_EVERY_MINUTE = "@every_minute"

_NO_MAIL = "no mail is sent: the worker that runs the command has to keep its output"
_FOR_CRON = {
    "CRON_TZ": "",  # carried over, as the jobs' time zone
    "MAILTO": _NO_MAIL,
    "MAILFROM": _NO_MAIL,
    "CONTENT_TYPE": _NO_MAIL,
    "CONTENT_TRANSFER_ENCODING": _NO_MAIL,
    "RANDOM_DELAY": "jobs start on time: the field jitter_seconds spreads them",
    "START_HOURS_RANGE": "jobs run at their own times: only anacron has such a range",
}
"""Settings that are for cron itself, not for the command, and what becomes of them."""
_FOR_THE_WORKER = {
    "SHELL": "it is in the env of the payload: the worker that runs the command has to use it",
    "TZ": "it is in the env of the payload, for the command; only CRON_TZ moves the schedule",
}


@dataclass(frozen=True, slots=True)
class CrontabEntry:
    """One command and its times. `user` is None in the form without users, `stdin` where there is no `%`."""

    line: int
    schedule: str
    timezone: str
    command: str
    stdin: str | None
    environment: Mapping[str, str]
    user: str | None


class Remark(NamedTuple):
    """Something to say about a line."""

    line: int
    text: str


@dataclass(frozen=True, slots=True)
class Crontab:
    """All that a crontab says: entries, lines that cannot be understood, and what cannot be carried over."""

    entries: list[CrontabEntry] = field(default_factory=list)
    faults: list[Remark] = field(default_factory=list)
    losses: list[Remark] = field(default_factory=list)


def read_crontab(text: str, *, has_users: bool = False, timezone: str = "UTC") -> Crontab:
    """Read a user's crontab, or with `has_users` a system's. `timezone` holds where CRON_TZ says nothing."""
    reader = _Reader(has_users=has_users, timezone=timezone)
    for number, line in enumerate(text.split("\n"), start=1):
        reader.read(number, line.strip(" \t\r"))
    return reader.found


def job_names(stem: str, entries: Iterable[CrontabEntry]) -> list[str]:
    """A name for the job of each entry: the file's and the command's words, with numbers where these agree."""
    names: dict[str, None] = {}
    for entry in entries:
        wanted = f"{_slug(stem) or 'crontab'}-{_slug(_main_words(entry.command)) or f'line-{entry.line}'}"
        name, number = wanted, 1
        while name in names:
            number += 1
            name = f"{wanted}-{number}"
        names[name] = None
    return list(names)


class _Reader:
    """Goes through the lines, with the settings in force."""

    def __init__(self, *, has_users: bool, timezone: str) -> None:
        self.found = Crontab()
        self._has_users = has_users
        self._timezone = timezone
        self._settings: dict[str, str] = {}
        self._said: set[str] = set()

    def read(self, number: int, line: str) -> None:
        if not line or line.startswith("#"):
            return
        try:
            match = _SETTING.fullmatch(line)
            if match:
                self._set(number, match[1] or match[2] or match[3], _unquoted(match[4]))
            elif line.lower().split(maxsplit=1)[:1] == [_REBOOT]:
                self._lose(number, f"{line}: nothing runs at boot, a job needs times")
            else:
                self.found.entries.append(self._entry(number, line))
        except InvalidSchedule as refused:
            self.found.faults.append(Remark(number, refused.reason))

    def _set(self, number: int, name: str, value: str) -> None:
        self._settings[name] = value
        reason = _FOR_CRON.get(name) or _FOR_THE_WORKER.get(name)
        if reason and value:
            self._lose(number, f"{name}={value}: {reason}")

    def _entry(self, number: int, line: str) -> CrontabEntry:
        times = 1 if line.startswith("@") else 5
        wanted = times + self._has_users
        words = _BLANKS.split(line, maxsplit=wanted)
        if len(words) <= wanted:
            parts = ["a nickname" if times == 1 else "five fields", *(["a user"] * self._has_users), "a command"]
            raise InvalidSchedule("schedule", f"an entry has {listed(parts)}: {line!r}")
        user = words[times] if self._has_users else None
        if user is not None and f"user {user}" not in self._said:
            self._said.add(f"user {user}")
            self._lose(number, f"user {user}: it is in the payload, but the worker runs the command as its own user")
        command, stdin = _split_input(words[wanted])
        if not command:
            raise InvalidSchedule("schedule", f"has no command: {line!r}")
        environment = {name: value for name, value in self._settings.items() if name not in _FOR_CRON}
        timezone = self._settings.get("CRON_TZ") or self._timezone
        schedule = _checked(words[:times], timezone)
        return CrontabEntry(number, schedule, timezone, command, stdin, environment, user)

    def _lose(self, number: int, text: str) -> None:
        self.found.losses.append(Remark(number, text))


def _unquoted(value: str) -> str:
    quote = value[:1]
    if quote not in {'"', "'"}:
        return value
    inside, found, rest = value[1:].partition(quote)
    if not found or rest.strip():
        raise InvalidSchedule("schedule", f"the quoted value does not end where the line does: {value}")
    return inside


def _checked(words: list[str], timezone: str) -> str:
    """The schedule's text, once it is sure to mean something."""
    first, *others = words
    if first.lower() == _EVERY_MINUTE:
        first, others = "*", ["*"] * 4
    # A leading minus only keeps cron's own log quiet. A random minute of a range is what `H` is to each job.
    fields = [first.removeprefix("-"), *others]
    text = " ".join(_RANDOM.sub(_spread, each) for each in fields)
    cron.parse(text)
    zone(timezone)
    return text


def _spread(match: re.Match[str]) -> str:
    low, high = match.groups()
    return f"H({low or 0}-{high or 99})" if low or high else "H"


def _split_input(text: str) -> tuple[str, str | None]:
    """The command, and what it reads: after the first bare `%`, where each further one ends a line."""
    meanings = {"%": "\n", r"\%": "%"}
    command, _, stdin = _PERCENT.sub(lambda match: meanings.get(match[0], match[0]), text).partition("\n")
    if not stdin:
        return command.strip(), None
    return command.strip(), stdin if stdin.endswith("\n") else f"{stdin}\n"


def _main_words(command: str) -> str:
    return _FOLDERS.sub("", _REDIRECTION.sub("", command))


def _slug(text: str) -> str:
    return _NOT_WORD.sub("-", text.lower())[:_NAME_LENGTH].strip("-")
