"""A small shop on akadze: what `akadze demo` runs, and the example of the README.

`akadze worker akadze.demo.shop:app` runs its jobs.
"""

from __future__ import annotations

import os
from datetime import timedelta

from sqlalchemy import ForeignKey, MetaData, func, insert, select, update
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from akadze import Akadze, Fail, Retry, current
from akadze.demo import outside
from akadze.sync import current as sync_current

app = Akadze(database_url=os.environ.get("AKADZE_DATABASE_URL", "postgresql://localhost/shop"))

#: The limit key of all calls to the carrier.
CARRIER = "shop:carrier"


class Base(DeclarativeBase):
    metadata = MetaData(schema="shop")


class Order(Base):
    __tablename__ = "orders"

    id: Mapped[int] = mapped_column(primary_key=True)
    customer: Mapped[str]
    state: Mapped[str] = mapped_column(default="placed")


class Invoice(Base):
    __tablename__ = "invoices"

    order_id: Mapped[int] = mapped_column(ForeignKey(Order.id), primary_key=True)
    pdf: Mapped[bytes]


async def place_order(session: AsyncSession, *, cart: str, customer: str) -> Order:
    """Add an order, and the job that charges it, to the transaction of the session.

    Raises DuplicateJob while the same cart is being charged.
    """
    order = Order(customer=customer)
    session.add(order)
    await session.flush()  # gives the order its id
    await charge_order.using(session=session, unique_key=f"charge:{cart}", meta={"order": order.id}).enqueue(
        order_id=order.id
    )
    return order


@app.task("shop.charge_order", queue="orders")
async def charge_order(order_id: int) -> None:
    """Take the money. Then the paid order, the end of this job and the jobs that follow are committed as one."""
    try:
        await outside.take_money(order_id)
    except outside.BankBusy as busy:
        raise Retry(timedelta(seconds=0.5)) from busy
    async with current().complete_tx() as connection:
        paid = update(Order).where(Order.id == order_id).values(state="paid").returning(Order.customer)
        customer = (await connection.execute(paid)).scalar_one()
        await send_parcel.using(session=connection, limit_key=CARRIER).enqueue(order_id=order_id)
        await print_invoice.using(session=connection).enqueue(order_id=order_id)
        await send_mail.using(session=connection).enqueue(to=customer, subject=f"Order {order_id} is paid")
        await ask_for_review.using(session=connection, delay=timedelta(days=7), meta={"order": order_id}).enqueue(
            to=customer
        )


@app.task("shop.send_parcel", queue="orders")
async def send_parcel(order_id: int) -> str:
    """Hand the parcel over. Its limit key keeps the whole cluster within what the carrier allows."""
    return await outside.hand_over_parcel(order_id)


@app.task("shop.print_invoice", queue="orders")
def print_invoice(order_id: int) -> None:
    """Render and store an invoice. A plain function: it runs in a thread, and may block."""
    pdf = outside.render_invoice(order_id)
    with sync_current().complete_tx() as connection:
        connection.execute(insert(Invoice).values(order_id=order_id, pdf=pdf))


@app.task("shop.send_mail", queue="mail", max_attempts=4, backoff=lambda attempt: timedelta(seconds=0.4 * attempt))
async def send_mail(to: str, subject: str) -> None:
    """Send a mail: again when the server is busy, not again when there is no such address."""
    try:
        await outside.deliver_mail(to, subject)
    except outside.NoSuchAddress as error:
        raise Fail("the address does not exist") from error


@app.task("shop.ask_for_review", queue="mail")
async def ask_for_review(to: str) -> None:
    """Ask for a review, a week after the order."""
    await outside.deliver_mail(to, "How do you like it?")


@app.task("shop.export_page", queue="exports")
async def export_page(tenant: str, page: int) -> None:
    """Export one page of a tenant's orders; `limit_key` names the tenant, so that fair workers share their slots."""
    await outside.write_export(f"{tenant}-{page:03}.csv")


@app.task("shop.close_books", queue="reports")
async def close_books() -> None:
    """Do what takes its time."""
    await outside.add_up_the_day()


@app.periodic("shop.count_orders", every=timedelta(seconds=1), queue="reports")
async def count_orders() -> int:
    """Count the paid orders, once a second in the whole cluster."""
    async with app.engine.connect() as connection:
        paid = await connection.scalar(select(func.count()).where(Order.state == "paid"))
    return paid or 0
