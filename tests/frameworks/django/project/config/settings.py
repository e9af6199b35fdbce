"""The settings of a shop, its database as the environment says."""

from __future__ import annotations

import json
import os
from typing import Any

from psycopg.conninfo import conninfo_to_dict

if os.environ.get("SHOP_PSYCOPG2"):
    from config.psycopg2_only import load_engine

    load_engine()

_server = conninfo_to_dict(os.environ["SHOP_SERVER_URL"])

SECRET_KEY = "a secret of tests"
DEBUG = bool(os.environ.get("SHOP_DEBUG"))
ALLOWED_HOSTS = ["*"]
USE_TZ = True
TIME_ZONE = "Asia/Kathmandu"
ROOT_URLCONF = "config.urls"
STATIC_URL = "static/"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
    "akadze.contrib.django",
    "shop",
]
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]

DATABASES: dict[str, Any] = {
    "default": {
        "ENGINE": "django.db.backends.postgresql",
        "HOST": _server.get("host", ""),
        "PORT": _server.get("port", ""),
        "USER": _server.get("user", ""),
        "PASSWORD": _server.get("password", ""),
        "NAME": os.environ.get("SHOP_DATABASE", "shop"),
        "CONN_MAX_AGE": int(os.environ.get("SHOP_CONN_MAX_AGE", "0")),
        "CONN_HEALTH_CHECKS": bool(os.environ.get("SHOP_CONN_HEALTH_CHECKS")),
        "OPTIONS": json.loads(os.environ.get("SHOP_OPTIONS", "{}")),
        "TEST": {"NAME": os.environ.get("SHOP_TEST_DATABASE", "shop_test")},
    },
    # Not of PostgreSQL: akadze has nothing to do with it.
    "notes": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"},
}

AKADZE = {"APP": "shop.jobs:app", "DATABASE": "default"}

TASKS = {
    "default": {
        "BACKEND": "akadze.contrib.django.backend.AkadzeBackend",
        "QUEUES": ["default", "mail"],
    }
}
TASKS["immediate"] = {"BACKEND": "django.tasks.backends.immediate.ImmediateBackend"}
