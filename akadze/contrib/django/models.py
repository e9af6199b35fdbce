"""akadze's tables as unmanaged models, to read: for the admin, and for queries of a project's own.

Rows are made and changed by akadze's own calls, which know the rules of states and locks; the models refuse to.
"""

from __future__ import annotations

from typing import Any, NoReturn

from django.db import models

from akadze._states import STATES
from akadze.contrib.django._settings import read_settings
from akadze.errors import AkadzeError


def _refuse(*_args: Any, **_kwargs: Any) -> NoReturn:
    raise AkadzeError(
        "akadze's models are for reading: enqueue with Task.using, and use the calls of akadze.sync (requeue, "
        "request_cancel, pause_queue, set_limit, ...) on Django's connection"
    )


_refuse.alters_data = True  # type: ignore[attr-defined]  # templates do not call it


class TextArrayField(models.Field):
    """A list of text. Django's own needs ``django.contrib.postgres`` among the installed apps."""

    def db_type(self, connection: Any) -> str:  # noqa: ARG002 - Django's signature
        return "text[]"


class ReadOnlyQuerySet(models.QuerySet):
    """Reads."""

    update = delete = bulk_create = bulk_update = _refuse


class ReadManager(models.Manager.from_queryset(ReadOnlyQuerySet)):  # type: ignore[misc]  # made by Django
    """Reads from the database of the setting AKADZE."""

    def get_queryset(self) -> ReadOnlyQuerySet:
        # A router, or using() in a query, may say otherwise.
        return super().get_queryset().using(self._db or read_settings().database)  # type: ignore[no-any-return]


class _Row(models.Model):
    objects = ReadManager()

    class Meta:
        abstract = True

    save = delete = _refuse


class Job(_Row):
    """A job. ``args``, ``result`` and ``errors`` may be large: leave them out of lists with ``defer``."""

    id = models.BigIntegerField(primary_key=True)
    task = models.TextField()
    queue = models.TextField()
    state = models.TextField(choices=[(state, state) for state in STATES])
    priority = models.SmallIntegerField()
    args = models.JSONField()
    meta = models.JSONField()
    created_at = models.DateTimeField()
    run_at = models.DateTimeField()
    started_at = models.DateTimeField(null=True)
    finished_at = models.DateTimeField(null=True)
    run_count = models.IntegerField()
    attempt = models.IntegerField()
    max_attempts = models.IntegerField()
    snoozes = models.IntegerField()
    errors = models.JSONField()
    result = models.JSONField(null=True)
    unique_key = models.TextField(null=True)
    limit_key = models.TextField(null=True)
    worker_id = models.UUIDField(null=True)
    cancel_requested_at = models.DateTimeField(null=True)
    expires_at = models.DateTimeField(null=True)
    expired = models.BooleanField()

    class Meta:
        managed = False
        db_table = '"akadze"."jobs"'
        default_permissions = ("view",)
        permissions = (("requeue_job", "Can requeue job"), ("cancel_job", "Can request cancel of job"))

    def __str__(self) -> str:
        return f"job {self.pk} of task {self.task}"


class Worker(_Row):
    """A registered worker."""

    id = models.UUIDField(primary_key=True)
    hostname = models.TextField()
    pid = models.IntegerField()
    queues = TextArrayField()
    started_at = models.DateTimeField()
    heartbeat_at = models.DateTimeField()
    heartbeat_ttl = models.DurationField()
    sleeping = models.BooleanField()

    class Meta:
        managed = False
        db_table = '"akadze"."workers"'
        default_permissions = ("view",)

    def __str__(self) -> str:
        return f"worker {self.pid} on {self.hostname}"


class Limit(_Row):
    """The limits of a ``limit_key``; None means that kind of limit is not set."""

    key = models.TextField(primary_key=True)
    max_running = models.IntegerField(null=True)
    max_starts = models.IntegerField(null=True)
    window = models.DurationField(null=True)

    class Meta:
        managed = False
        db_table = '"akadze"."limits"'
        default_permissions = ("view",)

    def __str__(self) -> str:
        return str(self.key)


class QueuePause(_Row):
    """A paused queue."""

    queue = models.TextField(primary_key=True)
    paused_at = models.DateTimeField()

    class Meta:
        managed = False
        db_table = '"akadze"."queue_pauses"'
        default_permissions = ("view",)

    def __str__(self) -> str:
        return str(self.queue)


class PeriodicRun(_Row):
    """A slot of a schedule that has been enqueued; ``job_id`` is that of its job, which may be gone."""

    pk = models.CompositePrimaryKey("task", "slot")
    task = models.TextField()
    slot = models.DateTimeField()
    job_id = models.BigIntegerField(null=True)
    created_at = models.DateTimeField()

    class Meta:
        managed = False
        db_table = '"akadze"."periodic_runs"'
        default_permissions = ("view",)

    def __str__(self) -> str:
        return f"{self.task} at {self.slot}"
