"""Contract, sections 2 and 5: the example for FastAPI, with requests that commit and roll back."""

from __future__ import annotations

import httpx

from tests.examples.conftest import Rows
from tests.examples.example import Example, address_of
from tests.families import FULL
from tests.waiting import wait_until

EXAMPLE = "fastapi"


@FULL
def test_the_readme_can_be_followed(example: Example) -> None:
    assert example.commands == [
        "pip install -r requirements.txt",
        "pytest",
        "export AKADZE_DATABASE_URL=postgresql://akadze:akadze@localhost:5432/akadze",
        "akadze migrate",
        "uvicorn web:web",
        "akadze worker tasks:app",
    ]
    assert "2 passed" in example.run("pytest", database=False)


def test_an_order_and_its_job_are_committed_before_the_response(example: Example, rows: Rows) -> None:
    example.run("akadze migrate")
    web = example.start("uvicorn web:web", "--port", "0")
    with httpx.Client(base_url=address_of(web)) as client:
        assert client.put("/products/lamp", params={"stock": 20}).status_code == 200
        for number in range(1, 11):
            placed = client.post("/orders", json={"product": "lamp"})
            assert (placed.status_code, placed.json()) == (201, {"id": number})
            assert rows("select max(id) from orders") == [(number,)]
            assert rows("select cast(args ->> 'order_id' as integer) from akadze.jobs order by id desc limit 1") == [
                (number,)
            ]
        assert 'akadze_jobs{queue="default",state="queued"} 10' in client.get("/metrics").text

        worker = example.start("akadze worker tasks:app")
        wait_until(lambda: client.get("/orders/10").json()["state"] == "paid")
        wait_until(lambda: rows("select count(*) from akadze.jobs where state = 'succeeded'") == [(20,)])
    assert rows(
        "select distinct task, result from akadze.jobs where task = 'send_receipt' and args ->> 'order_id' = '7'"
    ) == [("send_receipt", "receipt for order 7")]
    worker.terminate()
    assert worker.wait() == 0


def test_an_order_that_cannot_be_filled_leaves_neither_order_nor_job(example: Example, rows: Rows) -> None:
    example.run("akadze migrate")
    web = example.start("uvicorn web:web", "--port", "0")
    with httpx.Client(base_url=address_of(web)) as client:
        client.put("/products/lamp", params={"stock": 1})
        statuses = [client.post("/orders", json={"product": "lamp"}).status_code for _ in range(3)]
        assert client.post("/orders", json={"product": "none"}).status_code == 409
    assert statuses == [201, 409, 409]
    assert rows("select count(*) from orders") == [(1,)]
    assert rows("select count(*) from akadze.jobs") == [(1,)]


def test_a_worker_inside_the_web_application_serves_and_stops_with_it(example: Example, rows: Rows) -> None:
    example.run("akadze migrate")
    web = example.start("uvicorn web:web", "--port", "0", environment={"SHOP_WORKER": "inside"})
    with httpx.Client(base_url=address_of(web)) as client:
        client.put("/products/lamp", params={"stock": 1})
        client.post("/orders", json={"product": "lamp"})
        wait_until(lambda: client.get("/orders/1").json()["state"] == "paid")
        assert rows("select count(*) from akadze.workers") == [(1,)]
    web.terminate()
    web.wait()
    assert "Application shutdown complete" in web.stderr
    assert "Traceback" not in web.stderr
    assert rows("select count(*) from akadze.workers") == [(0,)]


def test_a_web_application_whose_worker_lacks_its_tables_does_not_start(
    example: Example, empty_database_url: str
) -> None:
    example.url = empty_database_url
    web = example.start("uvicorn web:web", "--port", "0", environment={"SHOP_WORKER": "inside"})
    assert web.wait() != 0
    assert "akadze migrate" in web.stderr
