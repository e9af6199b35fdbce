"""Contract, section 8: ending tasks, whatever they do when they are cancelled."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

from akadze._worker.ending import end_tasks


async def test_a_task_that_goes_on_after_its_cancellation_is_cancelled_once_more() -> None:
    cancelled: list[int] = []

    async def slow() -> None:
        while len(cancelled) < 2:
            try:
                await asyncio.sleep(600)
            except asyncio.CancelledError:
                cancelled.append(1)

    task = asyncio.create_task(slow())
    await asyncio.sleep(0)
    await end_tasks([task], patience=20, first=0.01)
    assert task.done()
    assert len(cancelled) == 2


async def test_a_task_that_does_not_end_is_waited_for_no_longer_than_told() -> None:
    release = asyncio.Event()

    async def stubborn() -> None:
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                pass

    task = asyncio.create_task(stubborn())
    await asyncio.sleep(0)
    await asyncio.wait_for(end_tasks([task], patience=0.05, first=0.05), 20)
    assert not task.done()
    release.set()
    await task


async def test_errors_of_ended_tasks_are_not_reported() -> None:
    reports: list[dict[str, Any]] = []
    loop = asyncio.get_running_loop()
    before = loop.get_exception_handler()
    loop.set_exception_handler(lambda _, context: reports.append(context))

    async def fails() -> None:
        try:
            await asyncio.sleep(600)
        finally:
            raise ValueError("in the end")

    async def failed() -> None:
        raise ValueError("before")

    tasks = [asyncio.create_task(fails()), asyncio.create_task(failed())]
    await asyncio.sleep(0.01)
    await end_tasks(tasks, patience=1, first=1)
    assert all(task.done() for task in tasks)
    tasks.clear()
    gc.collect()
    loop.set_exception_handler(before)
    assert reports == []
