"""What `import evertick` offers is a promise: a change here is a change of the public surface."""

import subprocess
import sys

import evertick


def test_the_exported_names_are_exactly_these() -> None:
    assert evertick.__all__ == [
        "ApiError",
        "App",
        "AsyncClient",
        "Client",
        "DoNotRetry",
        "EvertickError",
        "InvalidInput",
        "InvalidSchedule",
        "ResultNotKept",
        "RetryLater",
        "Run",
        "RunCancelled",
        "RunFailed",
        "Schedule",
        "Worker",
        "__version__",
        "inbox",
        "receive",
    ]


def test_the_exported_names_are_sorted_and_exist() -> None:
    assert sorted(evertick.__all__) == evertick.__all__
    assert all(hasattr(evertick, name) for name in evertick.__all__)


def test_who_only_computes_schedules_loads_no_database_driver() -> None:
    code = "import sys, evertick; evertick.Schedule; sys.exit('asyncpg' in sys.modules or 'asyncio' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_who_only_calls_the_api_loads_no_database_driver() -> None:
    code = "import sys, evertick; evertick.Client; sys.exit('asyncpg' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
