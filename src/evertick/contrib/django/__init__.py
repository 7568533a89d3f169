"""Django: an App of the settings, handlers in `jobs.py` and `tasks.py` of installed apps, `manage.py evertick`, and
links to the dashboard in the admin.

    from evertick.contrib.django import app
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from evertick.contrib.django.project import DjangoApp

    app: DjangoApp

__all__ = ["app"]


def __getattr__(name: str) -> Any:
    if name != "app":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # When first asked for: it needs the settings.
    from evertick.contrib.django.project import app_of_settings  # noqa: PLC0415

    return app_of_settings()
