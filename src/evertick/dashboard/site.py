"""All pages, as the server gets them."""

from evertick.api.operations import Site
from evertick.dashboard import assets
from evertick.dashboard.pages import (
    alerts,
    cluster,
    dead_letters,
    forecast,
    job,
    job_form,
    jobs,
    jobs_bulk,
    login,
    overview,
    runs,
    settings,
)
from evertick.dashboard.rendering import PAGES

SITE = Site(
    (
        assets.routes,
        login.routes,
        overview.routes,
        alerts.routes,
        jobs.routes,
        job_form.routes,
        job.routes,
        jobs_bulk.routes,
        runs.routes,
        dead_letters.routes,
        forecast.routes,
        cluster.routes,
        settings.routes,
    ),
    PAGES,
)
