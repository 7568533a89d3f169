"""Links to the dashboard in the admin: its pages as entries of the index, and links for columns of other models."""

from typing import Any

from django.contrib import admin
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.html import format_html

from evertick.contrib.django.models import DeadLettersPage, JobsPage, RunsPage
from evertick.contrib.django.project import options_of_settings

__all__ = ["job_link", "run_link"]


def dashboard_url(path: str) -> str | None:
    """The address of a page of the dashboard, if the settings say where that is."""
    base = options_of_settings().get("dashboard_url")
    return None if not base else base.rstrip("/") + path


def job_link(job_id: str) -> str:
    """A link to the page of a job, for `list_display` and `readonly_fields`."""
    return _link(f"/jobs/{job_id}", job_id)


def run_link(run_id: str) -> str:
    """A link to the page of a run."""
    return _link(f"/runs/{run_id}", run_id)


def _link(path: str, text: str) -> str:
    url = dashboard_url(path)
    return text if url is None else str(format_html('<a href="{}">{}</a>', url, text))


class PageAdmin(admin.ModelAdmin):
    """An entry of the index that leads to a page of the dashboard."""

    path = "/"

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:  # noqa: ARG002 - Django's
        url = dashboard_url(self.path)
        assert url is not None, "else it is not registered"
        return HttpResponseRedirect(url)

    def has_add_permission(self, request: HttpRequest) -> bool:  # noqa: ARG002 - Django's
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:  # noqa: ARG002 - Django's
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:  # noqa: ARG002 - Django's
        return False


if dashboard_url("/") is not None:
    for page, path in ((JobsPage, "/jobs"), (RunsPage, "/runs"), (DeadLettersPage, "/dead-letters")):
        admin.site.register(page, type(f"{page.__name__}Admin", (PageAdmin,), {"path": path}))
