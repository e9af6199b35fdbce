"""Every construct that a module may hold. The text is converted and compared; it is never run."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Annotated, Any, Literal

from psycopg import AsyncConnection as DriverConnection
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine
from sqlalchemy.ext.asyncio import AsyncSession as SessionOfCaller

from akadze import list_jobs
from akadze._async.pages import async_pages, first_page
from akadze.testing import drain

# The same comment stands in both.
SEPARATOR = "–"  # a wide character before other tokens: "é", await
Mode = Literal["async", "sync"]
Row = Annotated[dict[str, Any], "await"]

if True:  # ASYNC
    LOCK = asyncio.Lock()
else:
    # This comment is kept with its block,
    LOCK = None

    def describe() -> str:
        """Say what it is.

        The inner indent of a text stays.
        """
        return """first
            second
    third"""

    # and this one closes it.

if True:  # ASYNC
    GATHER = asyncio.gather
    # This comment goes with its block.

# This comment stays.


class Reader:
    """Read pages."""

    def __init__(self, connection: AsyncConnection, opened: AsyncExitStack) -> None:
        self.connection = connection
        self.is_async_driver = opened is not None

    async def __aenter__(self) -> Reader:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.aclose()

    async def __aiter__(self) -> AsyncIterator[str]:
        async for page in async_pages(self.connection):
            yield page.name

    async def aclose(self) -> None:
        # A comment between the lines of a body.
        with suppress(ValueError):
            await self.connection.close()


@asynccontextmanager
async def reading(engine: AsyncEngine, *, pages: int = 1) -> AsyncIterator[Reader]:
    async with engine.connect() as connection, AsyncExitStack() as stack:
        yield Reader(connection, stack)


async def parentheses(connection: AsyncConnection, read: Callable[[], Any]) -> list[Any]:
    one = (await connection.execute(text("select 1"))).scalar_one()
    two = (
        await connection.execute(
            text("select 2"),
        )
    ).all()[0]
    three = (await (await connection.begin_nested()).start()).value
    four = (await connection.scalar(text("select 4"))) or (await read() or 5)
    five = await (read() if one else read())
    six = ((await read()), (await read(), 6), [(await read())[0] for _ in range(2)])
    seven = print(await read(), (await read()))
    eight = not (await read()) and -(await read())
    if (await read()) in (await read()):
        return (await read()) if five else (await read())
    return [one, two, three, four, five, six, seven, eight]


async def comprehensions(reader: Reader) -> dict[str, Any]:
    rows = [page.name async for page in reader]
    names = {page.name async for page in reader if await page.is_open()}
    by_name = {page.name: (await page.rows()) async for page in reader}
    nested = [[await row.value() for row in rows] async for rows in reader]
    later = (page.name async for page in reader)
    return {"rows": rows, "names": names, "by_name": by_name, "nested": nested, "later": later}


async def texts(reader: Reader) -> tuple[str, ...]:
    name = (await first_page(reader.connection)).name
    return (
        """é
    await – async
""",
        f"{name!r:>{len(name)}} — {SEPARATOR}",
        await reader.name(),
        f"""{name} é""",
        (await first_page(reader.connection)).name,
    )


async def branches(reader: Reader, driver: DriverConnection, session: SessionOfCaller) -> bool:
    if reader:
        if True:  # ASYNC
            async with asyncio.timeout(1):
                return await reader.ready()
        else:
            if True:  # ASYNC
                await asyncio.sleep(0)
            else:  # a nested branch
                reader.wait()
            return reader.ready()

    # A plain condition is no branch.
    if True:
        pass
    return reader.is_async_driver


async def test_a_reader_reads_pages(async_engine: AsyncEngine) -> None:
    await drain(async_engine, mode="async", is_async_driver=True)
    assert len(await list_jobs(async_engine)) == 2
