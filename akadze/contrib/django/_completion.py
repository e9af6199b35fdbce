"""complete_tx on Django's own connection."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.db import transaction

from akadze.context import Run, running, sync_complete_in
from akadze.contrib.django._connections import OPEN_BLOCKS
from akadze.contrib.django._settings import postgresql
from akadze.errors import AkadzeError


@contextmanager
def complete_tx(using: str | None = None) -> Iterator[None]:
    """Run the block in ``transaction.atomic()``. On a clean exit the job is finished in that transaction.

    ORM writes of the block and the job's success commit together or not at all. ``using`` is the alias of the database
    that holds the jobs, that of the setting AKADZE by default. An error inside the block rolls it back and is an error
    of the run like any other. Functions given to ``transaction.on_commit`` run after the commit; an error there does
    not undo it. What the task returns after the block is not stored. For plain functions; async ones call it through
    ``sync_to_async``.

    Raises RunLost, and rolls the block back, if this run no longer owns the job. Raises AkadzeError outside a job,
    inside another ``atomic()`` block, whose rollback would undo the success, without autocommit, if an
    ``on_transition`` hook is async, and if the job has been finished by an earlier block or one is open.
    """
    run = running("akadze.contrib.django.complete_tx()")
    connection = postgresql(using)
    if len(connection.atomic_blocks) > OPEN_BLOCKS.get().get(connection.alias, 0):
        raise AkadzeError(
            "complete_tx() was called inside another atomic() block, whose rollback would undo the success: let "
            "complete_tx() be the outermost block"
        )
    if not connection.in_atomic_block and not connection.get_autocommit():
        raise AkadzeError(
            f"the database {connection.alias!r} is not in autocommit, so atomic() would not commit: call complete_tx() "
            "with autocommit on"
        )
    with sync_complete_in(run, lambda: _atomic(run, connection)):
        yield


@contextmanager
def _atomic(run: Run, connection: Any) -> Iterator[Any]:
    def committed() -> None:
        run.completed = True

    with transaction.atomic(using=connection.alias):
        # The first one, so that an error of another does not hide that the job is finished.
        transaction.on_commit(committed, using=connection.alias)
        yield connection
