"""Contract, sections 3, 4 and 6: unique keys, cancel requests, and the moves between states."""

from __future__ import annotations

import asyncio
import random
import string
from datetime import timedelta
from typing import Any

import pytest
from psycopg import AsyncConnection
from sqlalchemy import text

from akadze import (
    Akadze,
    AkadzeError,
    DuplicateJob,
    EnqueueError,
    Retry,
    Snooze,
    current,
    list_jobs,
    request_cancel,
    requeue,
    set_limit,
    sync,
)
from akadze.task import Task
from tests.field.world import OPTIONS, World
from tests.worker.serving import Serve
from tests.worker.table import Table, enqueue


def at_once(attempt: int) -> timedelta:
    return timedelta(0)


async def is_taken(task: Task[Any], key: str) -> bool:
    """Try to enqueue with the key, in a transaction that goes on; tell whether it was refused as a duplicate."""
    async with task.app.engine.begin() as connection:
        before = await connection.scalar(text("select count(*) from akadze.jobs"))
        try:
            await task.using(session=connection, unique_key=key).enqueue()
        except DuplicateJob:
            assert await connection.scalar(text("select count(*) from akadze.jobs")) == before
            return True
    return False


async def test_b111_a_key_is_held_until_its_job_has_ended(app: Akadze, table: Table, serve: Serve) -> None:
    release = asyncio.Event()

    @app.task("keyed", max_attempts=2, backoff=at_once)
    async def keyed() -> None:
        await release.wait()
        if current().job.run_count == 1:
            raise Retry(timedelta(days=1))

    other = app.register(keyed.fn, name="other", queue="elsewhere")
    job_id = await enqueue(keyed, unique_key="u")
    assert await is_taken(keyed, "u")
    await serve(**OPTIONS, queues=["default"])
    await table.in_state(job_id, "running")
    assert await is_taken(keyed, "u")
    assert await is_taken(other, "u")
    release.set()
    await table.until("select state = 'queued' and attempt = 1 from akadze.jobs where id = %s", job_id)
    assert await is_taken(keyed, "u")
    assert await is_taken(other, "u")
    await table.rows("update akadze.jobs set run_at = now() where id = %s", job_id)
    assert (await table.ended(job_id))["state"] == "succeeded"
    assert not await is_taken(other, "u")
    assert await is_taken(keyed, "u")


async def test_b113_duplicates_of_a_retrying_job_hold_up_neither_it_nor_others(
    app: Akadze, database_url: str, table: Table, serve: Serve
) -> None:
    waiting = asyncio.Event()

    @app.task("keyed", max_attempts=2)
    async def keyed() -> None:
        if current().job.run_count == 1:
            waiting.set()
            raise Retry(timedelta(seconds=2))

    async def flow() -> None:
        pass

    flows = [app.register(flow, name=queue, queue=queue) for queue in ("one", "two")]
    await serve(**OPTIONS)
    job_id = await enqueue(keyed, unique_key="u")
    await waiting.wait()
    await table.in_state(job_id, "queued")
    counts = {"duplicate": 0, "accepted": 0}

    async def press(times: int) -> None:
        async with await AsyncConnection.connect(database_url) as connection:
            for _ in range(times):
                try:
                    await keyed.using(session=connection, unique_key="u").enqueue()
                    counts["accepted"] += 1
                except DuplicateJob:
                    counts["duplicate"] += 1
                await connection.commit()

    async def others() -> list[int]:
        ids = []
        while (await table.job(job_id))["state"] == "queued":
            ids += [await enqueue(flow) for flow in flows]
            await asyncio.sleep(0.05)
        return ids

    pressing = asyncio.gather(*[press(times) for times in (13, 13, 12, 12)])
    ids = await others()
    await pressing

    row = await table.ended(job_id, *ids)
    assert counts == {"duplicate": 50, "accepted": 0}
    assert (row["state"], row["run_count"], row["attempt"]) == ("succeeded", 2, 1)
    assert len(ids) > 4
    assert await table.value(
        "select max(started_at - run_at) < interval '0.7 s' from akadze.jobs where queue in ('one', 'two')"
    )
    assert {row["state"] for row in await table.jobs(*ids)} == {"succeeded"}


async def test_b115_a_job_that_was_asked_to_stop_is_never_started_again(
    app: Akadze, table: Table, serve: Serve
) -> None:
    asked = asyncio.Event()

    async def body(how: str) -> Any:
        if how != "time out":
            await asked.wait()
        match how:
            case "raise":
                raise ValueError
            case "retry":
                raise Retry(timedelta(0))
            case "snooze":
                raise Snooze(timedelta(0))
            case "time out":
                await asyncio.sleep(600)
            case "return an object":
                return object()
            case "complete and raise":
                async with current().complete_tx() as connection:
                    await connection.execute(text("select 1"))
                raise ValueError
        return 1

    task = app.register(body, name="task", max_attempts=5, backoff=at_once)
    timed = app.register(body, name="timed", max_attempts=5, backoff=at_once, timeout=timedelta(seconds=1.5))
    ends = {
        "raise": "cancelled",
        "retry": "cancelled",
        "snooze": "cancelled",
        "time out": "cancelled",
        "return": "succeeded",
        "return an object": "cancelled",
        "complete and raise": "succeeded",
    }
    ids = {how: await enqueue(timed if how == "time out" else task, {"how": how}) for how in ends}
    await serve(**OPTIONS, slots=len(ends))
    await table.until("select bool_and(state = 'running') from akadze.jobs")
    async with app.engine.begin() as connection:
        for job_id in ids.values():
            await request_cancel(connection, job_id)
    asked.set()
    await table.ended(*ids.values())
    await asyncio.sleep(2 * OPTIONS["poll_interval"])  # it is looked for that nothing starts again
    rows = {how: await table.job(job_id) for how, job_id in ids.items()}
    assert {how: row["state"] for how, row in rows.items()} == ends
    assert {row["run_count"] for row in rows.values()} == {1}
    assert rows["return"]["result"] == 1


def test_b116_a_job_asked_to_cancel_and_cut_short_by_a_stop_ends_cancelled(world: World) -> None:
    source = """
    @app.task("slow", max_attempts=3)
    async def slow():
        with logged():
            await asyncio.sleep(600)

    app.hooks.on_transition.append(lambda connection, job, old, new: note(f"{job.id} {old} {new}"))
    """
    [job_id] = world.enqueue("slow")
    first = world.worker(source, shutdown_timeout=0.5)
    world.until("select count(*) = 1 from public.runs")
    with world.connect() as connection:
        sync.request_cancel(connection, job_id)
    first.terminate()
    assert first.wait() == 0
    world.worker(source)
    [later] = world.enqueue("slow")
    world.in_state(later, "running")

    job = world.job(job_id)
    assert (job["state"], job["run_count"], job["attempt"], job["worker_id"]) == ("cancelled", 1, 0, None)
    notes = [row["note"] for row in world.rows("select note from public.notes order by id")]
    assert [note for note in notes if note.startswith(f"{job_id} ")] == [
        f"{job_id} queued running",
        f"{job_id} running cancelled",
    ]
    assert world.value("select count(*) from public.runs where job_id = %s", job_id) == 1


def test_b118_keys_that_look_alike_are_different_keys(world: World) -> None:
    drawn = random.Random(118)
    stem = "".join(drawn.choices(string.ascii_letters, k=199))
    keys = ["a", "A", "a ", " a", "\uff41", "\u00e9", "e\u0301", "a'b", "a%", "0"]
    keys += [stem + chr(0x100 + n) for n in range(1000)]
    app = Akadze(database_url=world.url)
    task = app.register(lambda: None, name="task")
    with world.connect() as connection, connection.transaction():
        for key in keys:
            task.using(session=connection, unique_key=key).enqueue()
    with world.connect() as connection, connection.transaction():
        for key in keys:
            with pytest.raises(DuplicateJob):
                task.using(session=connection, unique_key=key).enqueue()
        for _ in range(2):  # no key at all
            task.using(session=connection, unique_key="").enqueue()
    stored = world.rows("select unique_key from akadze.jobs order by id")
    assert [row["unique_key"] for row in stored] == [*keys, None, None]
    app.close()


@pytest.mark.parametrize("length", [255, 512, 513, 2600, 3000, 100_000])
async def test_b119_a_long_key_works_or_is_refused_before_the_database_sees_it(
    length: int, app: Akadze, table: Table, serve: Serve
) -> None:
    drawn = random.Random(length)
    running = most = 0

    async def body() -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.02)
        running -= 1

    def draw() -> str:
        return "".join(drawn.choices(string.ascii_letters + string.digits, k=length))

    plain = app.register(body, name="plain")
    keys: dict[str, Any] = {"unique_key": draw(), "limit_key": draw()}
    if length > 512:
        with pytest.raises(AkadzeError, match=f"{length} bytes"):
            app.register(body, name="queued", queue=draw())
        with pytest.raises(AkadzeError, match=f"{length} bytes"):
            app.register(body, name=draw())
        async with app.engine.begin() as connection:
            await plain.using(session=connection).enqueue()
            for name, key in keys.items():
                with pytest.raises(EnqueueError, match=f"{length} bytes"):
                    await plain.using(session=connection, **{name: key}).enqueue()
            with pytest.raises(AkadzeError, match=f"{length} bytes"):
                await set_limit(connection, keys["limit_key"], 1)
            await plain.using(session=connection).enqueue()
        assert len(await list_jobs(app.engine)) == 2
        return
    queued = app.register(body, name=draw(), queue=draw())
    async with app.engine.begin() as connection:
        await set_limit(connection, keys["limit_key"], 1)
        await queued.using(session=connection, **keys).enqueue()
        with pytest.raises(DuplicateJob):
            await queued.using(session=connection, **keys).enqueue()
        await queued.using(session=connection, limit_key=keys["limit_key"]).enqueue_many([{}] * 4)
    await serve(**OPTIONS, slots=5)
    await table.until("select count(*) = 5 from akadze.jobs where state = 'succeeded'")
    assert most == 1


async def test_b120_snoozes_spend_nothing_however_many(app: Akadze, table: Table, serve: Serve) -> None:
    @app.task("snoozing", max_attempts=1)
    async def snoozing() -> None:
        if current().job.snoozes < 300:
            raise Snooze(timedelta(0))

    job_id = await enqueue(snoozing)
    await serve(**OPTIONS)
    row = await table.ended(job_id)
    assert (row["state"], row["attempt"], row["snoozes"], row["run_count"]) == ("succeeded", 0, 300, 301)


async def test_b120_a_failed_job_can_be_requeued_again_and_again(app: Akadze, table: Table, serve: Serve) -> None:
    @app.task("failing", max_attempts=3, backoff=at_once)
    async def failing() -> None:
        raise ValueError(f"run {current().job.run_count}")

    async def bring_back(job_id: int) -> None:
        async with app.engine.begin() as connection:
            await requeue(connection, job_id)

    job_id = await enqueue(failing)
    served = await serve(**OPTIONS)
    for times in range(3):
        row = await table.in_state(job_id, "failed")
        assert (row["attempt"], row["run_count"], row["max_attempts"]) == (3 + times, 3 + times, 3 + times)
        assert [entry["message"] for entry in row["errors"]] == [f"run {n}" for n in range(1, 4 + times)]
        if times < 2:
            await bring_back(job_id)
            await table.until("select run_count = %s from akadze.jobs where id = %s", 4 + times, job_id)

    most = 2**31 - 1
    last = await enqueue(failing, max_attempts=most, delay=timedelta(days=1))
    await table.rows(
        "update akadze.jobs set state = 'failed', attempt = %s, finished_at = now() where id = %s", most, last
    )
    await bring_back(last)
    await table.until("select run_count = 1 and state = 'failed' from akadze.jobs where id = %s", last)
    row = await table.job(last)
    assert (row["attempt"], row["max_attempts"]) == (most, most)
    assert served.up
    [other] = [await enqueue(failing, max_attempts=1)]
    await table.in_state(other, "failed")
