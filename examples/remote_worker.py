"""Runs handlers for an Evertick server elsewhere. It needs only the HTTP API: no database, no open port.

    $ evertick keys create --role worker --name billing       # where Evertick runs
    $ export EVERTICK_URL=http://127.0.0.1:8700 EVERTICK_API_KEY=evt_…
    $ python remote_worker.py                                 # on any number of machines

and, with a key that may create jobs:

    $ evertick jobs add invoice-c1 now --queue billing --handler send_invoice --payload '{"customer": "c1"}'
"""

from evertick import App, Run, Worker

app = App(queue="billing")


@app.handler("send_invoice")
async def send_invoice(run: Run, customer: str) -> None:
    # The key is the same on every attempt: pass it on to services that must not do this twice.
    run.logger.info("an invoice for %s, once per %s", customer, run.idempotency_key)


@app.handler("close_books")
def close_books(run: Run, month: str) -> None:  # not async: it runs in a thread
    run.logger.info("the books of %s are closed", month)


if __name__ == "__main__":
    Worker(app).run()  # until Ctrl-C or SIGTERM; then running handlers finish, or their attempts are put back
