"""The admin: jobs with what can be done to them, and workers, limits and paused queues to look at."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from django.contrib import admin, messages
from django.core.paginator import Paginator
from django.db import connections, models, transaction
from django.utils.functional import cached_property
from django.utils.html import format_html, format_html_join

from akadze import sync
from akadze._states import FINAL
from akadze.contrib.django.models import Job, Limit, QueuePause, Worker
from akadze.errors import AkadzeError

_GREATEST_ID = 2**63 - 1
#: Lists count and show this many rows at most: counting a table of millions takes seconds.
_MOST_COUNTED = 10_000
#: The names that a filter offers are those of so many newest jobs.
_NEWEST = 2_000
#: An action names so many jobs that it could not be done to.
_MOST_TOLD = 10


class _BoundedPaginator(Paginator):
    @cached_property
    def count(self) -> int:
        return int(self.object_list.order_by()[:_MOST_COUNTED].count())


class _NamesFilter(admin.SimpleListFilter):
    """The values of a column among the newest jobs: a distinct over all rows would read the whole table."""

    def lookups(self, _request: Any, _model_admin: Any) -> Iterable[tuple[str, str]]:
        newest = Job.objects.order_by("-id").values_list(self.parameter_name, flat=True)[:_NEWEST]
        return [(name, name) for name in sorted({*newest, *filter(None, [self.value()])})]

    def queryset(self, _request: Any, queryset: Any) -> Any:
        return queryset if self.value() is None else queryset.filter(**{self.parameter_name: self.value()})


class QueueFilter(_NamesFilter):
    title = "queue"
    parameter_name = "queue"


class TaskFilter(_NamesFilter):
    title = "task"
    parameter_name = "task"


class _ReadOnlyAdmin(admin.ModelAdmin):
    show_full_result_count = False
    paginator = _BoundedPaginator

    def has_add_permission(self, _request: Any) -> bool:
        return False

    def has_change_permission(self, _request: Any, _obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, _request: Any, _obj: Any = None) -> bool:
        return False


@admin.register(Job)
class JobAdmin(_ReadOnlyAdmin):
    """Jobs. Lists read no arguments, results or errors; the page of one job shows them."""

    list_display = ("id", "task", "queue", "state", "priority", "attempts", "run_at", "finished_at")
    list_filter = ("state", QueueFilter, TaskFilter)
    ordering = ("-id",)
    search_fields = ("id", "unique_key", "limit_key")
    search_help_text = "An id, or how a unique_key or limit_key begins"
    actions = ("requeue", "request_cancel")
    fieldsets = (
        (None, {"fields": ("id", "task", "queue", "state", "priority", "attempts", "error_history")}),
        ("Times", {"fields": ("created_at", "run_at", "started_at", "finished_at", "expires_at", "expired")}),
        (
            "Runs",
            {"fields": ("run_count", "snoozes", "worker_id", "cancel_requested_at", "unique_key", "limit_key", "meta")},
        ),
        ("Arguments and result", {"fields": ("args", "result"), "classes": ("collapse",)}),
    )
    readonly_fields = ("attempts", "error_history")

    def get_queryset(self, request: Any) -> Any:
        queryset = super().get_queryset(request)
        match = request.resolver_match
        if match is not None and str(match.url_name).endswith("_changelist"):
            queryset = queryset.defer("args", "result", "errors")
        return queryset

    def get_search_results(self, _request: Any, queryset: Any, search_term: str) -> tuple[Any, bool]:
        term = search_term.strip()
        if not term:
            return queryset, False
        wanted = models.Q(unique_key__startswith=term) | models.Q(limit_key__startswith=term)
        if term.isascii() and term.isdigit() and int(term) <= _GREATEST_ID:
            wanted |= models.Q(pk=int(term))
        return queryset.filter(wanted), False

    @admin.display(description="attempts")
    def attempts(self, job: Job) -> str:
        return f"{job.attempt} of {job.max_attempts}"

    @admin.display(description="errors")
    def error_history(self, job: Job) -> Any:
        """The last ten, newest last, each with its time and whole message."""
        if not job.errors:
            return "-"
        entries = format_html_join(
            "",
            '<li><p>{} <strong>{}</strong></p><pre style="white-space: pre-wrap">{}</pre></li>',
            ((entry["at"], entry["error"], entry["message"]) for entry in job.errors),
        )
        return format_html("<ol>{}</ol>", entries)

    def has_requeue_permission(self, request: Any) -> bool:
        return bool(request.user.has_perm("akadze.requeue_job"))

    def has_cancel_permission(self, request: Any) -> bool:
        return bool(request.user.has_perm("akadze.cancel_job"))

    @admin.action(description="Requeue failed jobs", permissions=["requeue"])
    def requeue(self, request: Any, queryset: Any) -> None:
        self._apply(request, queryset, sync.requeue, "requeued")

    @admin.action(description="Request cancel of queued and running jobs", permissions=["cancel"])
    def request_cancel(self, request: Any, queryset: Any) -> None:
        self._apply(request, queryset, _request_cancel, "asked to cancel")

    def _apply(self, request: Any, queryset: Any, call: Callable[[Any, int], None], done: str) -> None:
        """Do it to each job that it can be done to, in one transaction; say which ones were left out, and why."""
        changed: list[Job] = []
        refused: list[str] = []
        with transaction.atomic(using=queryset.db):
            # In the order in which rows are locked everywhere.
            for job in queryset.order_by("id"):
                try:
                    call(connections[queryset.db], job.pk)
                except AkadzeError as error:
                    refused.append(str(error))
                else:
                    changed.append(job)
            for job in changed:
                self.log_change(request, job, f"Job {done}.")
        if len(refused) > _MOST_TOLD:
            refused[_MOST_TOLD:] = [f"{len(refused) - _MOST_TOLD} more could not be {done} either"]
        for reason in refused:
            self.message_user(request, reason, messages.WARNING)
        if changed:
            self.message_user(request, f"{len(changed)} {'job' if len(changed) == 1 else 'jobs'} {done}.")


def _request_cancel(connection: Any, job_id: int) -> None:
    ended = Job.objects.using(connection.alias).filter(pk=job_id, state__in=FINAL).values_list("state", flat=True)
    for state in ended:
        raise AkadzeError(f"job {job_id} is {state}: only a queued or running job can be asked to cancel")
    sync.request_cancel(connection, job_id)


@admin.register(Worker)
class WorkerAdmin(_ReadOnlyAdmin):
    """Registered workers."""

    list_display = ("id", "hostname", "pid", "queues", "started_at", "heartbeat_at")
    ordering = ("-heartbeat_at",)


@admin.register(Limit)
class LimitAdmin(_ReadOnlyAdmin):
    """Limits."""

    list_display = ("key", "max_running", "max_starts", "window")
    ordering = ("key",)
    search_fields = ("key",)


@admin.register(QueuePause)
class QueuePauseAdmin(_ReadOnlyAdmin):
    """Paused queues."""

    list_display = ("queue", "paused_at")
    ordering = ("queue",)
