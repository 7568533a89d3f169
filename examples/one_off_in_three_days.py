"""Schedules one run in three days, and shows its fire time. Needs EVERTICK_URL and EVERTICK_API_KEY.

The job is in the database before `create` returns: later restarts and crashes do not affect it.
"""

from evertick import Client


def main() -> None:
    with Client() as client:
        job = client.jobs.create(
            schedule="in 3d",
            timezone="Europe/Paris",
            target={"type": "worker", "queue": "billing", "handler": "send_invoice"},
            payload={"customer": "c2"},
            labels={"customer": "c2"},
            idempotency_key="invoice-c2",  # started twice within a day, this creates one job
        )
        print(f"{job.job_id} is {job.status}")
        for tick in client.jobs.upcoming(job.job_id):
            print(f"it runs at {tick.local}, which is {tick.fire_at:%Y-%m-%d %H:%M:%S} UTC")


if __name__ == "__main__":
    main()
