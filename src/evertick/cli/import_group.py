"""`evertick jobs import`: a file of jobs, unless the first word is the name of another source."""

import typer
from typer.core import TyperGroup

from evertick.cli.import_crontab import crontab
from evertick.cli.import_file import import_file

_FILE = "file"


class FileUnlessNamed(TyperGroup):
    """`import jobs.ndjson` means `import file jobs.ndjson`."""

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override]
        if args and args[0] not in self.commands and args[0] not in ctx.help_option_names:
            args = [_FILE, *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    cls=FileUnlessNamed,
    no_args_is_help=True,
    help="Bring in jobs from a file (jobs import FILE), or from elsewhere.",
    rich_markup_mode="rich",
)
app.command(_FILE)(import_file)
app.command("crontab")(crontab)
