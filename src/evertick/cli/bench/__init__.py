"""`evertick bench`: measures Evertick on this machine; a table for people, `--json` for machines."""

import typer

from evertick.cli.bench import firing, lasting, over_http, schedules, standing

app = typer.Typer(
    no_args_is_help=True,
    help="Measure Evertick on this machine: real processes, on a database that is made for it and removed afterwards.",
)
app.command("drain")(firing.drain)
app.command("hot-second")(firing.hot_second)
app.command("steady")(firing.steady)
app.command("lag")(firing.lag)
app.command("register")(over_http.register)
app.command("webhooks")(over_http.webhooks)
app.command("load")(standing.load)
app.command("idle")(standing.idle)
app.command("growth")(lasting.growth)
app.command("age")(lasting.age)
app.command("floor")(lasting.floor)
app.command("schedules")(schedules.schedules)
