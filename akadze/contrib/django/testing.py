"""Helpers for Django's test cases: all on Django's own connection, so that a TestCase rolls everything back."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from asgiref.sync import async_to_sync
from django.core import mail

from akadze import _emptying
from akadze._bodies import OWN_LOOP
from akadze._connections import sync_caller
from akadze._sync.drain import drain as drain_on
from akadze._sync.testing import assert_enqueued_on
from akadze.app import Akadze
from akadze.contrib.django._app import get_app, install
from akadze.contrib.django._settings import postgresql
from akadze.errors import AkadzeError
from akadze.task import Task

__all__ = ["assert_enqueued", "drain", "empty_tables"]


def drain(app: Akadze | None = None, /, *, using: str | None = None, limit: int = 1000) -> None:
    """Run every job that is ready now, one after another, on Django's connection and in its transaction.

    ``app`` is that of the setting AKADZE unless it is given, ``using`` the alias of the database. Jobs that a TestCase
    has enqueued are run although nothing is committed, their ORM writes are seen by the test, and all of it vanishes
    with the test. Tasks run in the calling thread; what async ones do through Django's async methods or
    ``sync_to_async`` comes back to it. A database error that a task raises undoes what the task wrote, and the
    transaction stays usable. Functions given to ``transaction.on_commit`` do not run in a TestCase, those of tasks
    neither: see ``captureOnCommitCallbacks``.

    Raises AkadzeError if a ready job's task is not registered, and if jobs are still ready after ``limit`` runs.
    """
    connection = postgresql(using)
    if app is None:
        app = get_app()
    else:
        install(app)
    token = OWN_LOOP.set(_on_this_thread)
    try:
        drain_on(app, limit=limit, session=connection)
    finally:
        OWN_LOOP.reset(token)


def assert_enqueued(
    task: str | Task[Any],
    /,
    *,
    arguments: dict[str, Any] | None = None,
    app: Akadze | None = None,
    using: str | None = None,
) -> None:
    """Raise AssertionError unless a queued or running job has this task and these arguments.

    Reads on Django's connection, so what the test's own transaction has enqueued counts. Arguments are compared in
    their stored JSON form. ``task`` is a task or its name, ``app`` and ``using`` are as in ``drain``. A task that
    is not registered and arguments that do not fit it are AssertionErrors too.
    """
    assert_enqueued_on(postgresql(using), get_app() if app is None else app, task, arguments or {})


def empty_tables(*, using: str | None = None) -> None:
    """Delete all rows of akadze's tables, for the end of a TransactionTestCase, which empties those of models only.

    Raises AkadzeError outside a test run.
    """
    if not hasattr(mail, "outbox"):
        raise AkadzeError("empty_tables() deletes all jobs: it works only while Django's test environment is set up")
    _emptying.empty_tables(sync_caller(postgresql(using), error=AkadzeError))


def _on_this_thread(body: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    return async_to_sync(body)()
