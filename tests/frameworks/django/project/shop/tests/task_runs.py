"""Run tasks of django.tasks, and listen to their signals."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from django.tasks import default_task_backend
from django.tasks.signals import task_enqueued, task_finished, task_started

from akadze.contrib.django.testing import drain


@contextmanager
def signals() -> Iterator[list[tuple[str, Any, Any]]]:
    """Note each signal, with the sender and the status that its result had then."""
    told: list[tuple[str, Any, Any]] = []
    receivers: list[tuple[Any, Callable[..., None]]] = []
    for name, signal in (("enqueued", task_enqueued), ("started", task_started), ("finished", task_finished)):

        def receive(sender: Any, task_result: Any, name: str = name, **_: Any) -> None:
            told.append((name, sender, task_result.status))

        signal.connect(receive)
        receivers.append((signal, receive))
    try:
        yield told
    finally:
        for signal, receive in receivers:
            signal.disconnect(receive)


def drained(of: Any, *args: Any, **kwargs: Any) -> Any:
    """Enqueue and run a task; return its result, read anew."""
    result = of.enqueue(*args, **kwargs)
    drain()
    return default_task_backend.get_result(result.id)
