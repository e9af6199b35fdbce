"""What happens in the demo, scene by scene."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta

from akadze import DuplicateJob, list_jobs, request_cancel, set_limit
from akadze.demo import outside, shop
from akadze.demo.crew import COMMAND
from akadze.demo.stage import Stage

CUSTOMERS = [f"customer-{number}@example.org" for number in range(1, 8)] + [outside.NOBODY]
AT_ONCE, STARTS, WINDOW = 2, 4, timedelta(seconds=2)
LARGE, SMALL = "tenant:large", "tenant:small"
LARGE_PAGES, SMALL_PAGES = 150, 3


class CardDeclined(Exception):
    """Raised by the checkout, after the order has been placed."""


async def tell(stage: Stage) -> None:
    """Play all scenes."""
    await orders(stage)
    await workers(stage)
    await kill(stage)
    await fairness(stage)
    await cancel(stage)
    await rescue(stage)
    await stop(stage)


async def orders(stage: Stage) -> None:
    stage.screen.scene("An order and its job are one transaction")
    for number, customer in enumerate(CUSTOMERS, 1):
        async with stage.sessions.begin() as session:
            order = await shop.place_order(session, cart=f"cart-{number}", customer=customer)
        stage.notes.orders.append(order.id)
        await asyncio.sleep(0.08)
    stage.screen.say(f"{len(CUSTOMERS)} orders placed, each with the job that charges it.")

    try:
        async with stage.sessions.begin() as session:
            order = await shop.place_order(session, cart="cart-9", customer="customer-9@example.org")
            stage.notes.rolled_back = order.id
            raise CardDeclined
    except CardDeclined:
        jobs = await stage.row("count_meta", meta=f'{{"order": {order.id}}}')
    stage.screen.say(
        f"Order {order.id} was placed, and its job enqueued; then the checkout failed and rolled back: ",
        (f"{jobs['jobs']} jobs of it are left.", "green"),
    )

    try:
        async with stage.sessions.begin() as session:
            await shop.place_order(session, cart="cart-1", customer=CUSTOMERS[0])
    except DuplicateJob:
        stage.screen.say("A second click on the first cart: DuplicateJob, as its unique_key is held. No second order.")


async def workers(stage: Stage) -> None:
    stage.screen.scene("Two workers run the jobs")
    stage.screen.say(("$ " + " ".join(COMMAND), "cyan"))
    async with stage.engine.begin() as connection:
        await set_limit(connection, shop.CARRIER, max_running=AT_ONCE, max_starts=STARTS, window=WINDOW)
    pids = [stage.crew.start(), stage.crew.start()]

    async def registered() -> bool:
        return bool((await stage.row("count_working", pids=pids))["workers"] == len(pids))

    await stage.until("the workers start", registered)
    seconds = WINDOW.total_seconds()
    stage.screen.say("A schedule counts the paid orders, once a second, on whichever worker comes first.")
    stage.screen.say("A charge marks its order paid, ends, and enqueues what follows, in one commit (complete_tx).")
    stage.screen.say(
        "Invoices are printed by a plain function, in a thread. The mail server is busy: mails are retried."
    )
    stage.screen.say(
        f"The carrier allows {AT_ONCE} parcels at once and {STARTS} in {seconds:.0f} s, to all workers together."
    )

    async def ended() -> bool:
        return await stage.ended("shop.charge_order", "shop.send_parcel", "shop.print_invoice", "shop.send_mail")

    await stage.until("the orders are done", ended)
    found = await stage.row("measure_limit", key=shop.CARRIER, window=WINDOW)
    stage.screen.say(
        (f"Done: at most {found['at_once']} parcels at once, at most {found['in_window']} in {seconds:.0f} s.", "green")
    )


async def kill(stage: Stage) -> None:
    stage.screen.scene("A worker is killed")
    async with stage.sessions.begin() as session:
        await shop.close_books.using(session=session).enqueue()

    async def running() -> bool:
        for row in await stage.rows("find_running", task="shop.close_books"):
            stage.notes.killed = row["pid"]
            stage.crew.kill(row["pid"])
        return bool(stage.notes.killed)

    await stage.until("the books are being closed", running)
    stage.screen.say(
        f"kill -9 {stage.notes.killed}, in the middle of shop.close_books. ",
        "Its lease runs out 3 s after its last heartbeat; then the other worker may take the job. Meanwhile:",
    )


async def fairness(stage: Stage) -> None:
    stage.screen.scene("A large tenant and a small one share a worker")
    async with stage.sessions.begin() as session:
        await shop.export_page.using(session=session, limit_key=LARGE).enqueue_many(
            {"tenant": LARGE, "page": page} for page in range(LARGE_PAGES)
        )
        await shop.export_page.using(session=session, limit_key=SMALL).enqueue_many(
            {"tenant": SMALL, "page": page} for page in range(SMALL_PAGES)
        )
    stage.screen.say(f"{LARGE_PAGES} exports of {LARGE}, and behind them {SMALL_PAGES} of {SMALL}.")

    async def ended() -> bool:
        return await stage.ended("shop.export_page")

    await stage.until("the exports are done", ended)
    waiting = (await stage.row("measure_fairness", large=LARGE, small=SMALL))["waiting"]
    stage.screen.say((f"When the last of {SMALL} started, {waiting} of {LARGE} were still waiting.", "green"))


async def cancel(stage: Stage) -> None:
    stage.screen.scene("A job is called off")
    order = stage.notes.called_off = stage.notes.orders[2]
    (job,) = await list_jobs(stage.engine, state="queued", meta={"order": order})
    async with stage.sessions.begin() as session:
        await request_cancel(session, job.id)

    async def cancelled() -> bool:
        return bool((await stage.row("count_meta", meta=f'{{"order": {order}}}'))["never_ran"])

    await stage.until("the job is cancelled", cancelled)
    stage.screen.say(
        f"Order {order} came back. Job {job.id}, to ask for a review in a week, is cancelled; it never ran."
    )


async def rescue(stage: Stage) -> None:
    stage.screen.scene("The lost job is found")
    begun = time.monotonic()

    async def running() -> bool:
        for row in await stage.rows("find_running", task="shop.close_books"):
            if row["run_count"] > 1:
                stage.notes.taken_over_by = row["pid"]
        return bool(stage.notes.taken_over_by)

    async def ended() -> bool:
        return await stage.ended("shop.close_books")

    await stage.until("another worker takes the job over", running)
    stage.screen.say(f"Worker {stage.notes.taken_over_by} runs shop.close_books again: one attempt is spent.")
    await stage.until("the books are closed", ended)
    stage.screen.say(("It is done.", "green"), f" Waited {time.monotonic() - begun:.1f} s in this scene.")


async def stop(stage: Stage) -> None:
    stage.screen.scene("The last worker stops")
    stage.notes.exit_codes = await stage.crew.stop()
    for pid, code in stage.notes.exit_codes.items():
        stage.screen.say(f"SIGTERM to {pid}: it finished what it ran, signed off, and exited with {code}.")
