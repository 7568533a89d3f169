"""Pages of the dashboard as models without tables: so, the admin lists them, for users who may view them."""

from django.db import models


class Page(models.Model):
    """What the pages have in common. There are no rows."""

    class Meta:
        abstract = True
        managed = False
        default_permissions = ("view",)

    def __str__(self) -> str:
        return str(self._meta.verbose_name)


class JobsPage(Page):
    """The list of jobs."""

    class Meta(Page.Meta):
        verbose_name = verbose_name_plural = "Jobs"


class RunsPage(Page):
    """The list of runs."""

    class Meta(Page.Meta):
        verbose_name = verbose_name_plural = "Runs"


class DeadLettersPage(Page):
    """The list of dead letters."""

    class Meta(Page.Meta):
        verbose_name = verbose_name_plural = "Dead letters"
