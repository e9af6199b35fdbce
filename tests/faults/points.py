"""What a worker may be in the middle of when its server fails, and what has to be true when all is over."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import timedelta
from typing import Any

from akadze import Akadze, current
from tests.faults.breaking import SteadyTable
from tests.waiting import until


class Scene:
    """An app with one task, whose bodies wait until they are released, and count."""

    def __init__(self, url: str, table: SteadyTable) -> None:
        self.app = Akadze(database_url=url, grace=timedelta(hours=2), retention=timedelta(days=1))
        self.table = table
        self.started: Counter[int] = Counter()
        self.release = asyncio.Event()
        self.jobs: list[int] = []
        self.app.register(self._body, name="task", max_attempts=1)

    async def _body(self) -> None:
        self.started[current().job.id] += 1
        await self.release.wait()

    async def add(self, count: int, **columns: Any) -> list[int]:
        names = ", ".join(["task", *columns])
        values = ", ".join(["%s"] * (1 + len(columns)))
        rows = await self.table.rows(
            f"insert into akadze.jobs ({names}) select {values} from generate_series(1, %s) returning id",
            columns.pop("task", "task"),
            *columns.values(),
            count,
        )
        return [row["id"] for row in rows]

    async def succeeded(self, jobs: list[int], *, attempt: int = 0, run_count: int = 1) -> None:
        """Wait until all have succeeded; they have spent so many attempts, and each body ran once."""
        await self.table.until(
            "select count(*) = %s from akadze.jobs where id = any(%s) and state = 'succeeded'",
            len(jobs),
            jobs,
            timeout=30,
        )
        rows = await self.table.jobs(*jobs)
        assert {(row["attempt"], row["run_count"]) for row in rows} == {(attempt, run_count)}
        assert {tuple(row["error_names"]) for row in rows} == {("WorkerLost",) * attempt}
        assert {job_id: self.started[job_id] for job_id in jobs} == dict.fromkeys(jobs, 1)


class Point:
    """Something that a worker does. `trigger` says where its transaction is held, if it is."""

    trigger = ""

    async def prepare(self, scene: Scene) -> None:
        """Bring about what the worker will do."""

    async def reached(self, scene: Scene) -> None:
        """Wait until it is in the middle of it, where no trigger tells."""

    async def settled(self, scene: Scene) -> None:
        """Wait until it is done, and check it."""
        raise NotImplementedError


class Claim(Point):
    trigger = "before update on akadze.jobs for each row when (old.state = 'queued' and new.state = 'running')"

    async def prepare(self, scene: Scene) -> None:
        scene.release.set()
        scene.jobs = await scene.add(3, max_attempts=1)

    async def settled(self, scene: Scene) -> None:
        await scene.succeeded(scene.jobs)


class Run(Point):
    async def prepare(self, scene: Scene) -> None:
        scene.jobs = await scene.add(3, max_attempts=1)

    async def reached(self, scene: Scene) -> None:
        await until(lambda: len(scene.started) == 3)

    async def settled(self, scene: Scene) -> None:
        await scene.succeeded(scene.jobs)


class Finish(Claim):
    trigger = "before update on akadze.jobs for each row when (old.state = 'running' and new.state = 'succeeded')"


class Heartbeat(Run):
    trigger = "before update on akadze.workers for each row when (new.heartbeat_at > old.heartbeat_at)"

    async def settled(self, scene: Scene) -> None:
        now = await scene.table.value("select now()")
        await scene.table.until("select bool_and(heartbeat_at > %s) from akadze.workers", now)
        await scene.succeeded(scene.jobs)


class Rescue(Point):
    trigger = "before update on akadze.jobs for each row when (old.state = 'running' and new.state = 'queued')"

    async def prepare(self, scene: Scene) -> None:
        scene.release.set()
        scene.jobs = await scene.add(3, max_attempts=2)
        lost = await scene.table.add_worker(ttl=1, silent_for=60)
        await scene.table.start_elsewhere(lost, *scene.jobs)

    async def settled(self, scene: Scene) -> None:
        await scene.succeeded(scene.jobs, attempt=1, run_count=2)


class Schedule(Point):
    trigger = "before insert on akadze.periodic_runs for each row"

    async def prepare(self, scene: Scene) -> None:
        scene.release.set()

        @scene.app.periodic("hourly", every=timedelta(hours=1))
        async def hourly() -> None:
            scene.started[current().job.id] += 1

    async def settled(self, scene: Scene) -> None:
        await scene.table.until("select count(*) > 0 from akadze.periodic_runs")
        fired = [row["id"] for row in await scene.table.rows("select id from akadze.jobs where task = 'hourly'")]
        assert fired == [row["job_id"] for row in await scene.table.rows("select job_id from akadze.periodic_runs")]
        await scene.succeeded(fired)


class Cleanup(Point):
    trigger = "before delete on akadze.jobs for each row"

    async def prepare(self, scene: Scene) -> None:
        scene.release.set()
        self._young = await scene.add(3, state="failed")
        self._old = await scene.add(3, state="failed")
        await scene.table.rows("update akadze.jobs set finished_at = now()")
        await scene.table.rows(
            "update akadze.jobs set finished_at = now() - interval '2 days', created_at = now() - interval '3 days'"
            " where id = any(%s)",
            self._old,
        )

    async def settled(self, scene: Scene) -> None:
        await scene.table.until("select count(*) = 0 from akadze.jobs where id = any(%s)", self._old)
        assert set(self._young) <= set(await scene.table.states())


POINTS: dict[str, type[Point]] = {
    "claim": Claim,
    "run": Run,
    "finish": Finish,
    "heartbeat": Heartbeat,
    "rescue": Rescue,
    "schedule": Schedule,
    "cleanup": Cleanup,
}
