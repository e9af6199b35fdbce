"""Contract, sections 2 and 5: the example for Django, with requests that commit and roll back."""

from __future__ import annotations

import re

import httpx

from tests.examples.conftest import Rows
from tests.examples.example import Example
from tests.families import FULL
from tests.waiting import wait_until

EXAMPLE = "django"

_ADDRESS = re.compile(r"at (http://127\.0\.0\.1:\d+)/")


@FULL
def test_the_readme_can_be_followed(example: Example) -> None:
    assert example.commands == [
        "pip install -r requirements.txt",
        "export AKADZE_DATABASE_URL=postgresql://akadze:akadze@localhost:5432/akadze",
        "python manage.py test",
        "python manage.py migrate",
        "python manage.py runserver",
        "python manage.py akadze_worker",
    ]
    printed = example.run("python manage.py test")
    assert re.search(r"^Ran 2 tests .*\n\nOK$", printed, re.MULTILINE), printed


def test_a_loan_and_its_job_commit_or_roll_back_together(example: Example, rows: Rows) -> None:
    example.run("python manage.py migrate")
    web = example.start("python manage.py runserver", "--noreload", "0")
    web.wait_for_output("at http://127.0.0.1:")
    found = _ADDRESS.search(web.stdout)
    assert found is not None
    with httpx.Client(base_url=found[1], timeout=60) as client:
        assert client.put("/books/emma", params={"copies": 2}).status_code == 200
        answers = [client.post("/books/emma/loans", params={"member": f"member {number}"}) for number in range(4)]
        assert [answer.status_code for answer in answers] == [201, 201, 409, 409]
        lent = [answer.json()["id"] for answer in answers[:2]]
        assert rows("select id, member, confirmed from library_loan order by id") == [
            (lent[0], "member 0", False),
            (lent[1], "member 1", False),
        ]
        assert rows("select copies from library_book") == [(0,)]
        assert rows("select cast(args ->> 'loan_id' as integer), state from akadze.jobs order by id") == [
            (lent[0], "queued"),
            (lent[1], "queued"),
        ]

        worker = example.start("python manage.py akadze_worker", "--slots", "2")
        for loan_id in lent:
            wait_until(lambda loan_id=loan_id: client.get(f"/loans/{loan_id}").json()["confirmed"])
    # Confirmation and success are one transaction, so there is nothing to wait for.
    assert rows("select state, attempt from akadze.jobs") == [("succeeded", 0)] * 2
    same = "select count(*) from akadze.jobs j join library_loan l on l.id = cast(j.args ->> 'loan_id' as bigint)"
    assert rows(f"{same} where j.xmin = l.xmin") == [(2,)]
    worker.terminate()
    assert worker.wait() == 0
    web.terminate()
    web.wait()
