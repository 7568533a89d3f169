"""`evertick alerts`: which alerts are open, and where their notices go."""

from typing import Annotated, Any

from msgspec.structs import asdict

from evertick.cli.connection import ConnectionOptions, call, connection_options
from evertick.cli.options import Limit, parse_pairs
from evertick.cli.output import print_document, print_listing, print_result
from evertick.cli.signatures import Argument, CommandGroup, Option
from evertick.contract.alerts import Alert, AlertStatus
from evertick.domain.alerts import Condition

app = CommandGroup(help="List alerts; set and test where their notices go.")


@app.add("list")
@connection_options
def list_alerts(
    connection: ConnectionOptions,
    *,
    status: Annotated[AlertStatus | None, Option(help="Only alerts with this status.")] = None,
    limit: Limit = 50,
) -> None:
    """List alerts, newest first. A job's alert rules are among its fields.

    Examples

      evertick alerts list --status open

      evertick jobs edit send-weekly-report --set must_succeed_within=8d --set alert_after_failures=3
    """
    print_listing(
        call(connection, lambda backend: backend.list_alerts(status, limit)),
        ("condition", "of", "status", "opened (UTC)", "closed (UTC)", "openings", "notice", "detail"),
        _row,
        empty="No alerts.",
        as_json=connection.as_json,
    )


@app.add()
@connection_options
def target(connection: ConnectionOptions) -> None:
    """Show where notices go.

    Example

      evertick alerts target
    """
    print_document(asdict(call(connection, lambda backend: backend.get_alert_target())), as_json=connection.as_json)


@app.add()
@connection_options
def set_target(
    connection: ConnectionOptions,
    receiver: Annotated[str, Argument(metavar="URL", help="Where notices are delivered, as signed webhooks.")],
    *,
    header: Annotated[list[str] | None, Option(metavar="NAME:VALUE", help="Header. Can be repeated.")] = None,
    condition: Annotated[
        list[Condition] | None, Option(help="Send notices of this condition, not of all. Can be repeated.")
    ] = None,
) -> None:
    """Set where notices go. They are runs of the job `alert:notices`, which is created here.

    Examples

      evertick alerts set-target https://example.com/hooks/alerts

      evertick alerts set-target https://example.com/hooks/alerts --condition no_success --condition failures
    """
    options: dict[str, Any] = {"headers": parse_pairs("--header", header or (), ":")}
    if condition:
        options["conditions"] = [str(each) for each in condition]
    changed = call(connection, lambda backend: backend.put_alert_target(receiver, options))
    print_result(changed, f"Notices go to {changed.url}.", as_json=connection.as_json)


@app.add()
@connection_options
def remove_target(connection: ConnectionOptions) -> None:
    """Send no notices any more. Alerts are listed as before.

    Example

      evertick alerts remove-target
    """
    call(connection, lambda backend: backend.remove_alert_target())
    print_result({}, "No notices are sent any more.", as_json=connection.as_json)


@app.add()
@connection_options
def test(connection: ConnectionOptions) -> None:
    """Send a test notice.

    Example

      evertick alerts test
    """
    run_id = call(connection, lambda backend: backend.test_alert_target())
    text = f"A notice is under way: `evertick runs show {run_id}` says what became of it."
    print_result({"run_id": run_id}, text, as_json=connection.as_json)


def _row(alert: Alert) -> tuple[object, ...]:
    subject = alert.job_name or alert.subject
    times = alert.opened_at, alert.closed_at
    return alert.condition, subject, alert.status, *times, alert.openings, alert.notice_status, alert.detail
