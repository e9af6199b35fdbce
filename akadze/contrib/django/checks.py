"""What ``manage.py check`` says of the setting AKADZE."""

from __future__ import annotations

from typing import Any

from django.core.checks import CheckMessage, Error

from akadze._urls import without_password
from akadze.contrib.django._app import get_app
from akadze.contrib.django._settings import postgresql, read_settings
from akadze.errors import AkadzeError


def check_settings(**_given: Any) -> list[CheckMessage]:
    """Check the form of the setting (akadze.E001), its database (E002) and its app (E003)."""
    try:
        read_settings()
    except AkadzeError as error:
        return [Error(str(error), id="akadze.E001")]
    found: list[CheckMessage] = []
    try:
        postgresql(None)
    except AkadzeError as error:
        found.append(Error(str(error), id="akadze.E002"))
    else:
        # An app makes its URL of that database.
        try:
            get_app()
        except AkadzeError as error:
            found.append(Error(str(error), id="akadze.E003"))
        except Exception as error:  # whatever the project's module raises; the commands show its traceback
            message = f"importing AKADZE['APP'] raised {type(error).__name__}: {without_password(str(error))}"
            found.append(Error(message, id="akadze.E003"))
    return found
