"""The promises of the demo, each compared with what the tables say in the end."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from sqlalchemy import func, select

from akadze.demo import outside, shop, story
from akadze.demo.stage import TASKS, Stage


@dataclass(frozen=True, slots=True)
class Verdict:
    """What was promised, and what was found. Kept if both are the same, or ``kept`` says so."""

    promise: str
    expected: str
    found: str
    kept: bool


def _same(promise: str, expected: str, found: str) -> Verdict:
    return Verdict(promise, expected, found, found == expected)


async def verdicts(stage: Stage) -> list[Verdict]:
    """Check every promise."""
    return [await check(stage) for check in _CHECKS]


async def _rolled_back(stage: Stage) -> Verdict:
    order = stage.notes.rolled_back
    jobs = (await stage.row("count_meta", meta=f'{{"order": {order}}}'))["jobs"]
    async with stage.sessions() as session:
        rows = await session.scalar(select(func.count()).where(shop.Order.id == order))
    return _same(
        "What is rolled back was never enqueued.",
        f"order {order}: 0 rows, 0 jobs",
        f"order {order}: {rows} rows, {jobs} jobs",
    )


async def _clicked_twice(stage: Stage) -> Verdict:
    expected = len(stage.notes.orders)
    charges = sum(row["jobs"] for row in await stage.rows("count_ends", task="shop.charge_order"))
    async with stage.sessions() as session:
        rows = await session.scalar(select(func.count()).select_from(shop.Order))
    return _same(
        "A unique key is taken once.", f"{expected} orders, {expected} charges", f"{rows} orders, {charges} charges"
    )


async def _completed(stage: Stage) -> Verdict:
    count = len(stage.notes.orders)
    async with stage.sessions() as session:
        paid = await session.scalar(select(func.count()).where(shop.Order.state == "paid"))
    charged = await _ended(stage, "shop.charge_order", "succeeded")
    parcels = await _ended(stage, "shop.send_parcel", "succeeded")
    words = "{} paid orders, {} charges done, {} parcels sent"
    return _same(
        "A task's writes, its success and the jobs that follow are one commit.",
        words.format(count, count, count),
        words.format(paid, charged, parcels),
    )


async def _threaded(stage: Stage) -> Verdict:
    count = len(stage.notes.orders)
    done = await _ended(stage, "shop.print_invoice", "succeeded")
    async with stage.sessions() as session:
        invoices = await session.scalar(select(func.count()).select_from(shop.Invoice))
    return _same(
        "The same holds for plain functions, which run in threads.",
        f"{count} invoices, {count} jobs done",
        f"{invoices} invoices, {done} jobs done",
    )


async def _retried(stage: Stage) -> Verdict:
    ends = await stage.rows("count_ends", task="shop.send_mail")
    found = {(row["state"], row["run_count"]): row["jobs"] for row in ends}
    words = "{} sent at once, {} sent by the third run, {} failed in one run"
    return _same(
        "A failed run is tried again, unless the task says Fail.",
        words.format(len(story.CUSTOMERS) - len(outside.BUSY) - 1, len(outside.BUSY), 1),
        words.format(found.get(("succeeded", 1), 0), found.get(("succeeded", 3), 0), found.get(("failed", 1), 0)),
    )


async def _limited(stage: Stage) -> Verdict:
    found = await stage.row("measure_limit", key=shop.CARRIER, window=story.WINDOW)
    at_once, in_window, runs = found["at_once"], found["in_window"], found["runs"]
    seconds = f"{story.WINDOW.total_seconds():.0f} s"
    return Verdict(
        "A limit holds in the whole cluster.",
        f"1 run each, at most {story.AT_ONCE} at once and {story.STARTS} starts in {seconds}",
        f"{runs} run each, at most {at_once} at once and {in_window} starts in {seconds}",
        runs == 1 and 0 < at_once <= story.AT_ONCE and 0 < in_window <= story.STARTS,
    )


async def _shared(stage: Stage) -> Verdict:
    waiting = (await stage.row("measure_fairness", large=story.LARGE, small=story.SMALL))["waiting"]
    half = story.LARGE_PAGES // 2
    return Verdict(
        "A small tenant does not wait for a large one.",
        f"at least {half} of the large tenant's {story.LARGE_PAGES} start after the small tenant's last",
        f"{waiting} of the large tenant's {story.LARGE_PAGES} started after the small tenant's last",
        waiting >= half,
    )


async def _scheduled(stage: Stage) -> Verdict:
    found = await stage.row("measure_schedule", task="shop.count_orders")
    return Verdict(
        "A schedule fires once for each of its times, however many workers look.",
        "as many jobs as seconds, at least 3",
        f"{found['jobs']} jobs for {found['instants']} seconds",
        found["jobs"] == found["instants"] >= 3,
    )


async def _cancelled(stage: Stage) -> Verdict:
    order = stage.notes.called_off
    found = (await stage.row("count_meta", meta=f'{{"order": {order}}}'))["never_ran"]
    return _same(
        "A cancelled job does not run.",
        f"order {order}: 1 job cancelled with 0 runs",
        f"order {order}: {found} job cancelled with 0 runs",
    )


async def _rescued(stage: Stage) -> Verdict:
    notes = stage.notes
    rows = await stage.rows("count_ends", task="shop.close_books")
    ends = [
        f"{row['state']} in {row['run_count']} runs, {row['attempt']} attempt spent ({row['error']})" for row in rows
    ]
    workers = "two workers" if notes.killed != notes.taken_over_by else "one worker"
    return _same(
        "The job of a killed worker is run by another.",
        "succeeded in 2 runs, 1 attempt spent (WorkerLost), by two workers",
        f"{', '.join(ends)}, by {workers}",
    )


async def _stopped(stage: Stage) -> Verdict:
    left = (await stage.row("count_working", pids=list(stage.notes.exit_codes)))["workers"]
    codes = ", ".join(map(str, stage.notes.exit_codes.values()))
    return _same(
        "SIGTERM stops a worker cleanly.", "exit code 0, 0 workers left", f"exit code {codes}, {left} workers left"
    )


async def _nothing_lost(stage: Stage) -> Verdict:
    # The schedule may have fired once more just before the last worker stopped.
    enqueued = [task for task in TASKS if task != "shop.count_orders"]
    found = (await stage.row("count_open", tasks=enqueued))["jobs"]
    return _same("Nothing is left undone but what is planned for later.", "0 jobs open", f"{found} jobs open")


async def _ended(stage: Stage, task: str, state: str) -> int:
    return sum(row["jobs"] for row in await stage.rows("count_ends", task=task) if row["state"] == state)


_CHECKS: tuple[Callable[[Stage], Awaitable[Verdict]], ...] = (
    _rolled_back,
    _clicked_twice,
    _completed,
    _threaded,
    _retried,
    _limited,
    _shared,
    _scheduled,
    _cancelled,
    _rescued,
    _stopped,
    _nothing_lost,
)
