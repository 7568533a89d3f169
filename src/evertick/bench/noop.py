"""The app of the bench's workers: a handler that does nothing, so that all that is measured is Evertick's own."""

from evertick.bench.workload import HANDLER, QUEUE
from evertick.executor.handlers.run import Run
from evertick.sdk.app import App

app = App(name="bench", queue=QUEUE)


@app.handler(HANDLER)
async def noop(run: Run) -> None:
    """Do nothing."""
