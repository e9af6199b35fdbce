"""The settings. The database is the one that AKADZE_DATABASE_URL names."""

from __future__ import annotations

import os

from psycopg.conninfo import conninfo_to_dict

SECRET_KEY = os.environ.get("LIBRARY_SECRET_KEY", "only for trying it out")
DEBUG = "LIBRARY_SECRET_KEY" not in os.environ
ALLOWED_HOSTS = ["localhost", "127.0.0.1"]
ROOT_URLCONF = "library.urls"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
USE_TZ = True

INSTALLED_APPS = [
    "akadze.contrib.django",
    "library",
]

AKADZE = {
    "APP": "library.jobs:app",
    "DATABASE": "default",  # which may be left out
}

_database = conninfo_to_dict(os.environ["AKADZE_DATABASE_URL"])

DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": _database["dbname"],
        "HOST": _database.get("host", ""),
        "PORT": _database.get("port", ""),
        "USER": _database.get("user", ""),
        "PASSWORD": _database.get("password", ""),
    }
}
