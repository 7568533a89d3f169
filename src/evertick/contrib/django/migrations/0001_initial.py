"""Permissions to view the pages of the dashboard. There are no tables."""

from django.db import migrations, models


def _page(name: str, title: str) -> migrations.CreateModel:
    fields = [("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID"))]
    options = {
        "verbose_name": title,
        "verbose_name_plural": title,
        "abstract": False,
        "managed": False,
        "default_permissions": ("view",),
    }
    return migrations.CreateModel(name=name, fields=fields, options=options)


class Migration(migrations.Migration):
    """The first."""

    initial = True
    dependencies = ()
    operations = (
        _page("DeadLettersPage", "Dead letters"),
        _page("JobsPage", "Jobs"),
        _page("RunsPage", "Runs"),
    )
