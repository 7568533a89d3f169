"""`manage.py evertick`: the commands of Evertick for the App of the project."""

from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from evertick.contrib.commands import run_command
from evertick.contrib.django.project import app_of_settings

_WORKER = "evertick.contrib.django.worker:app"


class Command(BaseCommand):
    """Passes its arguments on."""

    help = "Commands of Evertick with the database of the settings: worker, migrate, jobs, runs, …"

    def run_from_argv(self, argv: list[str]) -> None:
        # Django has heeded these by now.
        parser = CommandParser(add_help=False, allow_abbrev=False)
        parser.add_argument("--settings")
        parser.add_argument("--pythonpath")
        self.handle(arguments=parser.parse_known_args(argv[2:])[1])

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("arguments", nargs="*")

    def handle(self, *_: Any, **options: Any) -> None:
        run_command(app_of_settings(), _WORKER, options["arguments"], "manage.py evertick")
