"""Where `manage.py evertick worker` finds the App, in processes of its own too."""

import django
from django.apps import apps

if not apps.ready:
    django.setup()

from evertick.contrib.django.project import app_of_settings

app = app_of_settings()
