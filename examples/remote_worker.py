"""Runs handlers for an Evertick elsewhere. All it needs is the HTTP API: no database, no open port.

    $ evertick keys create --role worker --name billing       # where Evertick runs
    $ export EVERTICK_URL=http://127.0.0.1:8700 EVERTICK_API_KEY=evt_…
    $ python remote_worker.py                                 # as often, and on as many machines, as you like

and, with a key that may create jobs:

    $ evertick jobs add invoice-c1 now --queue billing --handler send_invoice --payload '{"customer": "c1"}'
"""

from evertick import App, Run, Worker

app = App(queue="billing")


@app.handler("send_invoice")
async def send_invoice(run: Run, customer: str) -> None:
    # The key is the same on every attempt: give it to whoever must not do this twice.
    run.logger.info("an invoice for %s, once per %s", customer, run.idempotency_key)


@app.handler("close_books")
def close_books(run: Run, month: str) -> None:  # not async: it runs in a thread
    run.logger.info("the books of %s are closed", month)


if __name__ == "__main__":
    Worker(app).run()  # until Ctrl-C or SIGTERM; what runs then is finished or handed back
