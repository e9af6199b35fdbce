"""The schema akadze as of its migration 0001_tables, and the models that read it.

A migration of akadze's own that a later release brings has a migration here, too, with the same `apply_schema`.
"""

from __future__ import annotations

from django.db import migrations, models

from akadze.contrib.django._schema import apply_schema, keep_schema
from akadze.contrib.django.models import TextArrayField


class Migration(migrations.Migration):
    initial = True

    # Each of akadze's own is a transaction of its own, and one that builds indexes beside writers must not be in one.
    atomic = False

    dependencies = ()

    operations = (
        migrations.RunPython(apply_schema, keep_schema),
        migrations.CreateModel(
            name="Job",
            fields=[
                ("id", models.BigIntegerField(primary_key=True, serialize=False)),
                ("task", models.TextField()),
                ("queue", models.TextField()),
                (
                    "state",
                    models.TextField(
                        choices=[
                            ("queued", "queued"),
                            ("running", "running"),
                            ("succeeded", "succeeded"),
                            ("failed", "failed"),
                            ("cancelled", "cancelled"),
                        ]
                    ),
                ),
                ("priority", models.SmallIntegerField()),
                ("args", models.JSONField()),
                ("meta", models.JSONField()),
                ("created_at", models.DateTimeField()),
                ("run_at", models.DateTimeField()),
                ("started_at", models.DateTimeField(null=True)),
                ("finished_at", models.DateTimeField(null=True)),
                ("run_count", models.IntegerField()),
                ("attempt", models.IntegerField()),
                ("max_attempts", models.IntegerField()),
                ("snoozes", models.IntegerField()),
                ("errors", models.JSONField()),
                ("result", models.JSONField(null=True)),
                ("unique_key", models.TextField(null=True)),
                ("limit_key", models.TextField(null=True)),
                ("worker_id", models.UUIDField(null=True)),
                ("cancel_requested_at", models.DateTimeField(null=True)),
                ("expires_at", models.DateTimeField(null=True)),
                ("expired", models.BooleanField()),
            ],
            options={
                "db_table": '"akadze"."jobs"',
                "permissions": (("requeue_job", "Can requeue job"), ("cancel_job", "Can request cancel of job")),
                "managed": False,
                "default_permissions": ("view",),
            },
        ),
        migrations.CreateModel(
            name="Limit",
            fields=[
                ("key", models.TextField(primary_key=True, serialize=False)),
                ("max_running", models.IntegerField(null=True)),
                ("max_starts", models.IntegerField(null=True)),
                ("window", models.DurationField(null=True)),
            ],
            options={
                "db_table": '"akadze"."limits"',
                "managed": False,
                "default_permissions": ("view",),
            },
        ),
        migrations.CreateModel(
            name="PeriodicRun",
            fields=[
                (
                    "pk",
                    models.CompositePrimaryKey(
                        "task", "slot", blank=True, editable=False, primary_key=True, serialize=False
                    ),
                ),
                ("task", models.TextField()),
                ("slot", models.DateTimeField()),
                ("job_id", models.BigIntegerField(null=True)),
                ("created_at", models.DateTimeField()),
            ],
            options={
                "db_table": '"akadze"."periodic_runs"',
                "managed": False,
                "default_permissions": ("view",),
            },
        ),
        migrations.CreateModel(
            name="QueuePause",
            fields=[
                ("queue", models.TextField(primary_key=True, serialize=False)),
                ("paused_at", models.DateTimeField()),
            ],
            options={
                "db_table": '"akadze"."queue_pauses"',
                "managed": False,
                "default_permissions": ("view",),
            },
        ),
        migrations.CreateModel(
            name="Worker",
            fields=[
                ("id", models.UUIDField(primary_key=True, serialize=False)),
                ("hostname", models.TextField()),
                ("pid", models.IntegerField()),
                ("queues", TextArrayField()),
                ("started_at", models.DateTimeField()),
                ("heartbeat_at", models.DateTimeField()),
                ("heartbeat_ttl", models.DurationField()),
                ("sleeping", models.BooleanField()),
            ],
            options={
                "db_table": '"akadze"."workers"',
                "managed": False,
                "default_permissions": ("view",),
            },
        ),
    )
