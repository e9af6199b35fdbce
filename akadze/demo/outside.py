"""The world outside the shop, played: a bank, a carrier, a mail server and a printer, slow and moody on purpose.

Which call fails follows from the order and from the attempt, so that the demo tells the same story each time.
"""

from __future__ import annotations

import asyncio
import time

from akadze import current

#: Customers whose mail server is busy at the first two attempts, and one who does not exist.
BUSY = ("customer-2@example.org", "customer-5@example.org")
NOBODY = "nobody@example.org"


class BankBusy(Exception):
    """The bank wants to be asked again."""


class MailServerBusy(Exception):
    """The mail server takes nothing now."""


class NoSuchAddress(Exception):
    """The mail server knows nobody of that name."""


async def take_money(order_id: int) -> None:
    await asyncio.sleep(0.1)
    if order_id % 4 == 0 and current().job.attempt == 0:
        raise BankBusy


async def hand_over_parcel(order_id: int) -> str:
    await asyncio.sleep(0.3)
    return f"parcel-{order_id:04}"


async def deliver_mail(to: str, subject: str) -> None:
    await asyncio.sleep(0.02 + len(subject) / 1000)
    if to == NOBODY:
        raise NoSuchAddress
    if to in BUSY and current().job.attempt < 2:
        raise MailServerBusy("busy: try again later")


def render_invoice(order_id: int) -> bytes:
    time.sleep(0.1)  # what blocks is to be seen here
    return b"%PDF- invoice of order " + str(order_id).encode()


async def write_export(_name: str) -> None:
    await asyncio.sleep(0.03)


async def add_up_the_day() -> None:
    await asyncio.sleep(1.5)
