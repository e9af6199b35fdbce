"""What the shop does with an order."""

from __future__ import annotations

from httpx import AsyncClient
from tasks import charge_order, send_receipt

from akadze.pytest_plugin import AsyncJobs


async def test_an_order_is_charged_and_a_receipt_is_sent(client: AsyncClient, jobs: AsyncJobs) -> None:
    placed = await client.post("/orders", json={"product": "lamp"})
    assert placed.status_code == 201
    order_id = placed.json()["id"]
    await jobs.assert_enqueued(charge_order, order_id=order_id)
    await jobs.refute_enqueued(send_receipt)

    await jobs.drain()
    assert (await client.get(f"/orders/{order_id}")).json() == {"product": "lamp", "state": "paid"}
    assert await jobs.enqueued() == []


async def test_an_order_that_cannot_be_filled_leaves_no_job(client: AsyncClient, jobs: AsyncJobs) -> None:
    await client.put("/products/lamp", params={"stock": 0})
    assert (await client.post("/orders", json={"product": "lamp"})).status_code == 409
    await jobs.refute_enqueued(charge_order)
