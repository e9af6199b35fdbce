"""The web application of the shop: `uvicorn web:web`."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Annotated

from fastapi import Depends, FastAPI, HTTPException, Response
from models import Base, Order, Product
from pydantic import BaseModel
from sqlalchemy import update
from sqlalchemy.ext.asyncio import AsyncSession
from tasks import app, charge_order

from akadze.contrib.fastapi import lifespan_worker
from akadze.metrics import render_metrics


@asynccontextmanager
async def lifespan(web: FastAPI) -> AsyncIterator[None]:
    async with AsyncExitStack() as stack:
        stack.push_async_callback(app.aclose)
        async with app.engine.begin() as connection:
            await connection.run_sync(Base.metadata.create_all)
        if os.environ.get("SHOP_WORKER") == "inside":
            await stack.enter_async_context(lifespan_worker(app, slots=4))
        yield


web = FastAPI(lifespan=lifespan)


async def open_session() -> AsyncIterator[AsyncSession]:
    async with AsyncSession(app.engine) as session, session.begin():
        yield session


# Without the scope, FastAPI would commit only after it has sent the response.
Session = Annotated[AsyncSession, Depends(open_session, scope="function")]


class NewOrder(BaseModel):
    product: str


@web.put("/products/{name}")
async def stock_product(name: str, stock: int, session: Session) -> None:
    await session.merge(Product(name=name, stock=stock))


@web.post("/orders", status_code=201)
async def place_order(new: NewOrder, session: Session) -> dict[str, int]:
    order = Order(product=new.product)
    session.add(order)
    await session.flush()  # gives the order its id
    await charge_order.using(session=session, unique_key=f"charge-{order.id}").enqueue(order_id=order.id)
    one_less = update(Product).where(Product.name == new.product, Product.stock > 0).values(stock=Product.stock - 1)
    if (await session.execute(one_less.returning(Product.name))).first() is None:
        raise HTTPException(409, "out of stock")  # rolls back: no order, no job
    return {"id": order.id}


@web.get("/orders/{order_id}")
async def show_order(order_id: int, session: Session) -> dict[str, str]:
    order = await session.get(Order, order_id)
    if order is None:
        raise HTTPException(404)
    return {"product": order.product, "state": order.state}


@web.get("/metrics")
async def metrics() -> Response:
    return Response(await render_metrics(app.engine), media_type="text/plain; version=0.0.4; charset=utf-8")
