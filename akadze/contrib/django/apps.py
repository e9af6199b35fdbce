"""The Django app."""

from __future__ import annotations

from django.apps import AppConfig
from django.core import checks


class AkadzeConfig(AppConfig):
    """Checks, models, migrations, admin and commands, under the label ``akadze``."""

    name = "akadze.contrib.django"
    label = "akadze"
    verbose_name = "akadze"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from akadze.contrib.django.checks import check_settings

        checks.register(check_settings)
