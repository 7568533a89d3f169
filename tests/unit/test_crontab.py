"""Crontabs as people have them."""

import pytest
from hypothesis import example, given, strategies as st

from evertick.domain.crontab import CrontabEntry, job_names, read_crontab

USERS = """\
# m h dom mon dow command
MAILTO=admin@example.com
PATH="/usr/local/bin:/usr/bin"
GREETING = 'hello = world'

  */15 * * * *   fetch --all   > /dev/null
\t0 9 * jan-mar MON-FRI\treport
@daily tidy up
"""


def only(text: str, *, has_users: bool = False) -> CrontabEntry:
    read = read_crontab(text, has_users=has_users)
    assert read.faults == []
    (entry,) = read.entries
    return entry


def test_a_users_crontab_is_read_entry_by_entry() -> None:
    read = read_crontab(USERS)
    assert [(each.line, each.schedule, each.command) for each in read.entries] == [
        (6, "*/15 * * * *", "fetch --all   > /dev/null"),
        (7, "0 9 * jan-mar MON-FRI", "report"),
        (8, "@daily", "tidy up"),
    ]
    assert {each.user for each in read.entries} == {None}
    assert read.faults == []


def test_settings_hold_for_the_entries_below_them() -> None:
    read = read_crontab("@daily one\nA=1\n@daily two\nA = '2 3'\n\"B\"=\n@daily three")
    assert [dict(each.environment) for each in read.entries] == [{}, {"A": "1"}, {"A": "2 3", "B": ""}]


def test_a_systems_crontab_has_users() -> None:
    entry = only("17 *\t* * *\troot    cd / && run-parts --report /etc/cron.hourly", has_users=True)
    assert (entry.user, entry.command) == ("root", "cd / && run-parts --report /etc/cron.hourly")


def test_cron_tz_is_the_zone_of_the_entries_below_it() -> None:
    text = "@daily one\nCRON_TZ=Asia/Tokyo\n@daily two\nCRON_TZ=\n@daily three"
    read = read_crontab(text, timezone="Europe/Paris")
    assert [each.timezone for each in read.entries] == ["Europe/Paris", "Asia/Tokyo", "Europe/Paris"]
    assert all("CRON_TZ" not in each.environment for each in read.entries)


def test_a_percent_sign_begins_the_input_and_further_ones_end_its_lines() -> None:
    entry = only("0 9 * * * mail -s done boss%Dear boss,%%all is done.")
    assert (entry.command, entry.stdin) == ("mail -s done boss", "Dear boss,\n\nall is done.\n")


def test_an_escaped_percent_sign_is_one() -> None:
    entry = only(r"0 9 * * * date +\%F >> log")
    assert (entry.command, entry.stdin) == ("date +%F >> log", None)
    assert only(r"0 9 * * * cat%100\% sure").stdin == "100% sure\n"


def test_lines_may_end_as_on_windows() -> None:
    read = read_crontab("A=1\r\n\r\n@daily one\r\n")
    assert [(each.command, dict(each.environment)) for each in read.entries] == [("one", {"A": "1"})]


def test_a_line_does_not_continue_on_the_next() -> None:
    read = read_crontab("@daily one \\\n  --two\n")
    assert [each.command for each in read.entries] == ["one \\"]
    assert [fault.line for fault in read.faults] == [2]


@pytest.mark.parametrize(
    ("given", "schedule"),
    [
        ("-*/5 * * * *", "*/5 * * * *"),
        ("@every_minute", "* * * * *"),
        ("0~29 2 * * *", "H(0-29) 2 * * *"),
        ("~ ~5 * * *", "H H(0-5) * * *"),
        ("0 0 * * 7", "0 0 * * 7"),
    ],
)
def test_dialects_are_translated(given: str, schedule: str) -> None:
    assert only(f"{given} command").schedule == schedule


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("61 * * * * command", "cron field minute '61'"),
        ("0 0 30 2 * command", "never fires"),
        ("* * * * *", "five fields and a command"),
        ("@daily", "a nickname and a command"),
        ("@fortnightly command", "'@fortnightly' is not one of"),
        ("in 3 days x y command", "cron field minute 'in'"),
        ("* * * * * %input", "has no command"),
        ("A='1", "does not end where the line does"),
        ('A="1" 2', "does not end where the line does"),
    ],
)
def test_a_line_that_cannot_be_understood_is_named_with_the_reason(line: str, words: str) -> None:
    read = read_crontab(f"# first\n{line}\n@daily fine")
    ((number, reason),) = read.faults
    assert number == 2
    assert words.lower() in reason.lower()
    assert [each.line for each in read.entries] == [3], "the others are read"


def test_an_unknown_zone_is_not_taken_for_another() -> None:
    read = read_crontab("CRON_TZ=Mars/Olympus\n@daily command")
    assert read.entries == []
    assert [fault.line for fault in read.faults] == [2]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("MAILTO=root", "no mail"),
        ("SHELL=/bin/bash", "SHELL=/bin/bash"),
        ("RANDOM_DELAY=30", "jitter_seconds"),
        ("TZ=Asia/Tokyo", "only CRON_TZ"),
        ("@reboot start", "nothing runs at boot"),
    ],
)
def test_what_cannot_be_carried_over_is_said(line: str, words: str) -> None:
    read = read_crontab(line)
    ((number, text),) = read.losses
    assert number == 1
    assert words in text
    assert (read.faults, read.entries) == ([], [])


def test_mail_to_nobody_is_no_loss() -> None:
    assert read_crontab('MAILTO=""').losses == []


def test_each_user_is_mentioned_once() -> None:
    text = "@daily root one\n@daily www two\n@daily root three"
    assert [loss.line for loss in read_crontab(text, has_users=True).losses] == [1, 2]


def test_names_come_from_the_command_and_are_told_apart() -> None:
    commands = ["/opt/bin/backup.sh --full > /dev/null 2>&1", "backup.sh --full", "%%", "backup.sh --full 2", "…"]
    entries = [CrontabEntry(n, "@daily", "UTC", command, None, {}, None) for n, command in enumerate(commands, start=1)]
    assert job_names("My crontab", entries) == [
        "my-crontab-backup-sh-full",
        "my-crontab-backup-sh-full-2",
        "my-crontab-line-3",
        "my-crontab-backup-sh-full-2-2",
        "my-crontab-line-5",
    ]


LINES = st.text(alphabet="*0159/,-~%@ \t\r=#'\"\\aHLroot\0é") | st.text()


@example(["\x1f"], False)
@given(st.lists(LINES | st.builds("{} {}".format, st.just("* * * * *"), LINES)), st.booleans())
def test_any_text_is_read_without_a_crash_and_no_line_counts_twice(lines: list[str], has_users: bool) -> None:  # noqa: FBT001
    text = "\n".join(lines)
    read = read_crontab(text, has_users=has_users)
    numbers = [entry.line for entry in read.entries] + [fault.line for fault in read.faults]
    assert len(set(numbers)) == len(numbers)
    assert all(1 <= number <= text.count("\n") + 1 for number in numbers)
    names = job_names(text[:20], read.entries)
    assert len(set(names)) == len(read.entries)
