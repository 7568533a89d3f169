"""The smallest complete scheduler: `python quickstart.py`, and Ctrl-C to stop it."""

from evertick import App, Run

app = App()  # an embedded PostgreSQL, or the one of EVERTICK_DATABASE_URL


@app.cron("*/5 * * * *", timezone="Europe/Paris", missed_window="RUN_ONCE")
async def refresh(run: Run) -> None:
    run.logger.info("refreshing, as planned for %s", run.fire_at)


@app.every("2s")
async def beat(run: Run) -> None:
    run.logger.info("tick")


@app.handler("send_invoice")
def send_invoice(run: Run, customer: str) -> None:
    run.logger.info("an invoice for %s", customer)


if __name__ == "__main__":
    app.submit_sync("send_invoice", {"customer": "c1"})
    app.submit_sync("send_invoice", {"customer": "c2"}, delay="3d")
    app.run()  # schedules and works until Ctrl-C or SIGTERM
