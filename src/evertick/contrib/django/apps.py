"""The Django application `evertick.contrib.django`."""

from django.apps import AppConfig
from django.utils.module_loading import autodiscover_modules

from evertick.contrib.django.project import MODULES, app_of_settings, options_of_settings


class EvertickConfig(AppConfig):
    """Loads the modules of installed apps that declare handlers and jobs."""

    name = "evertick.contrib.django"
    label = "evertick"
    verbose_name = "Evertick"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        app_of_settings()  # refuses wrong settings now
        autodiscover_modules(*options_of_settings().get("modules", MODULES))
