"""The tasks of the shop. A worker is started with `akadze worker tasks:app`."""

from __future__ import annotations

import os

from models import Order
from sqlalchemy import update

from akadze import Akadze, current

# A function, so that the URL is looked up when it is needed: tests set it after this module was imported.
app = Akadze(database_url=lambda: os.environ["AKADZE_DATABASE_URL"])


@app.task("charge_order", max_attempts=5)
async def charge_order(order_id: int) -> None:
    # A call of the payment provider would stand here, with the order's id as its idempotency key.
    async with current().complete_tx() as connection:
        await connection.execute(update(Order).where(Order.id == order_id).values(state="paid"))
        await send_receipt.using(session=connection).enqueue(order_id=order_id)


@app.task("send_receipt", queue="mail")
def send_receipt(order_id: int) -> str:
    return f"receipt for order {order_id}"
