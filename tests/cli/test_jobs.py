"""Contract, section 14: `akadze jobs`."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from psycopg.types.json import Jsonb

from tests.cli.conftest import Cli, Table

AT = datetime(2026, 3, 1, 12, 30, 0, 123456, tzinfo=UTC)
BIG = 2**53 + 1


def ids(text: str) -> list[int]:
    return [row["id"] for row in json.loads(text)]


def test_a_piped_list_has_one_line_of_pairs_for_each_job(cli: Cli, table: Table) -> None:
    table.insert(id=7, queue="two words", priority=3, run_at=AT, meta=Jsonb({"tenant": 7}))
    table.insert(
        id=8, state="failed", attempt=3, run_at=AT, started_at=AT, finished_at=AT, errors=Jsonb([{"error": "E"}])
    )
    assert cli("jobs", "list").lines == [
        (
            'id=7 task=mail queue="two words" state=queued priority=3 attempt=0 max_attempts=3 '
            'run_at=2026-03-01T12:30:00.123456+00:00 started_at= finished_at= meta="{\\"tenant\\": 7}"'
        ),
        (
            "id=8 task=mail queue=default state=failed priority=0 attempt=3 max_attempts=3 "
            "run_at=2026-03-01T12:30:00.123456+00:00 started_at=2026-03-01T12:30:00.123456+00:00 "
            "finished_at=2026-03-01T12:30:00.123456+00:00 meta={}"
        ),
    ]


def test_json_is_one_document(cli: Cli, table: Table) -> None:
    table.insert(id=BIG, run_at=AT, meta=Jsonb({"a": None}))
    (job,) = json.loads(cli("jobs", "list", "--json").stdout)
    assert job == {
        "id": BIG,
        "task": "mail",
        "queue": "default",
        "state": "queued",
        "priority": 0,
        "attempt": 0,
        "max_attempts": 3,
        "run_at": "2026-03-01T12:30:00.123456+00:00",
        "started_at": None,
        "finished_at": None,
        "meta": {"a": None},
    }


def test_without_jobs_a_pipe_gets_nothing_and_json_an_empty_list(cli: Cli) -> None:
    assert cli("jobs", "list").stdout == ""
    assert json.loads(cli("jobs", "list", "--json").stdout) == []


@pytest.mark.usefixtures("person")
def test_a_person_gets_a_table(cli: Cli, table: Table) -> None:
    assert cli("jobs", "list").stdout == "No jobs.\n"
    table.insert(id=BIG, queue="[red]e\nf", run_at=AT)
    table.insert(id=2, state="succeeded", run_at=AT, finished_at=AT)
    lines = cli("jobs", "list", "--limit", "2").lines
    header = next(line for line in lines if "task" in line)
    assert header.split() == ["id", "task", "queue", "state", "attempt", "when"]
    (row,) = [line for line in lines if str(BIG) in line]
    assert row.split() == [str(BIG), "mail", r"[red]e\nf", "queued", "0/3", "due", "2026-03-01", "12:30:00Z"]
    (row,) = [line for line in lines if "succeeded" in line]
    assert row.split()[-3:] == ["ended", "2026-03-01", "12:30:00Z"]
    assert "The first 2; there may be more." in lines
    assert "there may be more" not in cli("jobs", "list", "--limit", "3").stdout


@pytest.mark.parametrize("limit", ["0", "-1", "1001", "50000", "x", "1.5", ""])
def test_a_limit_out_of_range_is_wrong_use(cli: Cli, limit: str) -> None:
    result = cli("jobs", "list", "--limit", limit)
    assert (result.code, result.stdout) == (2, "")
    assert "--limit" in result.stderr


def test_a_list_is_cut_at_the_limit(cli: Cli, table: Table) -> None:
    made = [table.insert() for _ in range(52)]
    assert ids(cli("jobs", "list", "--json").stdout) == made[:50]
    assert ids(cli("jobs", "list", "--json", "--limit", "51").stdout) == made[:51]


def test_filters_by_queue_and_state(cli: Cli, table: Table) -> None:
    table.insert(id=1, queue="a_b")
    table.insert(id=2, queue="axb")
    table.insert(id=3, queue="a_b", state="failed")
    assert ids(cli("jobs", "list", "--json", "--queue", "a_b").stdout) == [1, 3]
    assert ids(cli("jobs", "list", "--json", "--queue", "a_b", "--state", "failed").stdout) == [3]
    assert ids(cli("jobs", "list", "--json", "--queue", "a%").stdout) == []


def test_filters_by_task(cli: Cli, table: Table) -> None:
    table.insert(id=1, task="a_b")
    table.insert(id=2, task="axb")
    assert ids(cli("jobs", "list", "--json", "--task", "a_b").stdout) == [1]
    assert ids(cli("jobs", "list", "--json", "--task", "a_b", "--queue", "other").stdout) == []


def test_the_newest_come_first_when_they_are_asked_for(cli: Cli, table: Table) -> None:
    table.insert(id=1, priority=5)
    table.insert(id=2, run_at=AT)
    table.insert(id=3, priority=5, run_at=AT)
    assert ids(cli("jobs", "list", "--json").stdout) == [3, 1, 2]
    assert ids(cli("jobs", "list", "--json", "--newest").stdout) == [3, 2, 1]
    assert ids(cli("jobs", "list", "--json", "--newest", "--limit", "1").stdout) == [3]


@pytest.mark.usefixtures("person")
@pytest.mark.parametrize("width", [80, 40])
def test_a_narrow_terminal_breaks_no_value_of_the_table(cli: Cli, table: Table, width: int) -> None:
    environment = {"COLUMNS": str(width)}
    for number in (1234567, 1234568):
        table.insert(
            id=number, task="billing.invoices.send", state="failed", finished_at=AT, meta=Jsonb({"tenant": "t" * 30})
        )
    shown = cli("jobs", "list", "--limit", "2", environment=environment)
    assert max(map(len, shown.lines)) <= width
    first, second = (
        next(n for n, line in enumerate(shown.lines) if str(number) in line) for number in (1234567, 1234568)
    )
    for row in (shown.lines[first:second], shown.lines[second:]):
        together = " ".join(" ".join(row).split())
        for value in ("failed", "0/3", "ended 2026-03-01 12:30:00Z", "task billing.invoices.send", "queue default"):
            assert value.removeprefix("task ") in together
        assert '{"tenant": "tttttttttttttttttttttttttttttt"}' in together
    assert "The first 2; there may be more." in shown.lines
    newest = cli("jobs", "list", "--limit", "2", "--newest", environment=environment)
    assert "The newest 2; there may be more." in newest.lines


@pytest.mark.parametrize(
    ("pairs", "found"),
    [
        (["t=x_1"], [1]),
        (["t=1"], [3]),
        (['t="1"'], [4]),
        (["t=null"], [5]),
        (['n={"k": 1}'], [6]),
        (["n={}"], []),
        (["t=x_1", "u=true"], []),
        (["a=b=c"], [7]),
        (["t=NaN"], [8]),
        (["=empty"], [9]),
    ],
)
def test_filters_by_meta_with_exact_types(cli: Cli, table: Table, pairs: list[str], found: list[int]) -> None:
    metas = [
        *({"t": "x_1"}, {"t": "xy1"}, {"t": 1}, {"t": "1"}, {"t": None}, {"n": {"k": 1}}),
        *({"a": "b=c"}, {"t": "NaN"}, {"": "empty"}),
    ]
    for number, meta in enumerate(metas, 1):
        table.insert(id=number, meta=Jsonb(meta))
    options = [option for pair in pairs for option in ("--meta", pair)]
    assert ids(cli("jobs", "list", "--json", *options).stdout) == found


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--meta", "tenant"], "error: --meta is 'tenant': write it as key=value"),
        (["--meta", "a=1", "--meta", "a=2"], "error: --meta has the key 'a' twice: a job has one value for each"),
        (["--meta", "a=1e999"], "error: meta holds NaN, an infinity"),
        (["--queue", ""], "error: a queue's name is empty"),
        (["--task", ""], "error: a task's name is empty"),
        (["--queue", "q" * 513], "error: a queue's name has 513 bytes"),
    ],
)
def test_a_malformed_filter_is_wrong_use(cli: Cli, options: list[str], said: str) -> None:
    result = cli("jobs", "list", *options)
    assert result.code == 2
    assert result.stderr.startswith(said)
    assert result.stderr.count("\n") == 1


def test_an_unknown_state_is_wrong_use_that_names_the_states(cli: Cli) -> None:
    result = cli("jobs", "list", "--state", "done")
    assert result.code == 2
    assert "'done' is no state: give one of queued, running, succeeded, failed, cancelled" in result.stderr


def test_show_tells_all_of_a_job_but_its_arguments_and_result(cli: Cli, table: Table) -> None:
    errors = [{"error": "ValueError", "message": "two\nlines", "at": "2026-03-01T12:30:00+00:00"}]
    table.insert(
        id=BIG,
        state="failed",
        attempt=1,
        run_at=AT,
        created_at=AT,
        finished_at=AT,
        unique_key="u",
        limit_key="l",
        args=Jsonb({"name": "ada"}),
        result=Jsonb("secret result"),
        errors=Jsonb(errors),
    )
    result = cli("jobs", "show", str(BIG))
    assert len(result.lines) == 1
    assert result.stdout.startswith(f"id={BIG} task=mail queue=default state=failed priority=0 run_count=0 attempt=1 ")
    assert "two\\\\nlines" in result.stdout
    assert "ada" not in result.stdout
    assert "secret" not in result.stdout
    job = json.loads(cli("jobs", "show", str(BIG), "--json").stdout)
    columns = {
        row["column_name"]
        for row in table.rows(
            "select column_name from information_schema.columns where table_schema = 'akadze' and table_name = 'jobs'"
        )
    }
    assert set(job) == columns - {"args", "result"}
    assert (job["id"], job["errors"], job["finished_at"]) == (BIG, errors, AT.isoformat())


def test_show_tells_arguments_and_result_digit_for_digit_when_asked(cli: Cli, table: Table) -> None:
    job_id = table.insert(state="succeeded")
    table.rows(
        "update akadze.jobs set args = '{\"n\": 12345678901234567890.10}', result = '[1e2]' where id = %s", job_id
    )
    text = cli("jobs", "show", str(job_id), "--args", "--result", "--json").stdout
    assert '"args": {"n": 12345678901234567890.10}, "result": [100]}' in text
    assert (
        'args="{\\"n\\": 12345678901234567890.10}" result=[100]'
        in cli("jobs", "show", str(job_id), "--args", "--result").stdout
    )


@pytest.mark.usefixtures("person")
def test_show_tells_a_person_what_is_there_from_top_to_bottom(cli: Cli, table: Table) -> None:
    errors = [{"error": "ValueError", "message": "two\nlines", "at": "2026-03-01T12:30:00+00:00"}]
    table.insert(id=3, run_at=AT, errors=Jsonb(errors))
    lines = [line.split(maxsplit=1) for line in cli("jobs", "show", "3").lines]
    assert lines[:2] == [["id", "3"], ["task", "mail"]]
    assert ["run_at", "2026-03-01 12:30:00Z"] in lines
    assert ["errors", r"2026-03-01 12:30:00Z ValueError: two\nlines"] in lines
    assert "unique_key" not in [line[0] for line in lines]


ODD = [
    ({"error": "E", "message": "m", "at": "noon"}, "noon E: m"),
    ({"error": "E", "message": "m", "at": "0001-01-01T00:00:00+05:00"}, "0001-01-01T00:00:00+05:00 E: m"),
    *(
        (odd, json.dumps(odd))
        for odd in (
            {"at": 5, "error": "E", "message": "m"},
            {"at": None, "error": "E", "message": "m"},
            {"error": "E", "message": "m"},
            {"at": AT.isoformat(), "message": "m"},
            {"at": AT.isoformat(), "error": "E"},
            {},
            None,
            7,
            "text",
            ["list"],
        )
    ),
]


def test_show_prints_errors_that_somebody_wrote_by_hand(cli: Cli, table: Table, request: pytest.FixtureRequest) -> None:
    errors = [error for error, _ in ODD]
    table.insert(id=3, errors=Jsonb(errors))
    assert json.loads(cli("jobs", "show", "3", "--json").stdout)["errors"] == errors
    [line] = cli("jobs", "show", "3").lines
    assert "0001-01-01T00:00:00+05:00" in line
    request.getfixturevalue("person")
    lines = [line.strip() for line in cli("jobs", "show", "3").lines]
    first = next(number for number, line in enumerate(lines) if line.startswith("errors"))
    shown = [line.removeprefix("errors").strip() for line in lines[first : first + len(ODD)]]
    assert [parsed(line) for line in shown] == [parsed(line) for _, line in ODD]


def parsed(line: str) -> Any:
    """An object as its keys and values: the database has an order of its own for keys."""
    return json.loads(line) if line.startswith("{") else line


@pytest.mark.parametrize("errors", ["[" + "9" * 5000 + "]", "[" * 2000 + "]" * 2000], ids=["digits", "depth"])
def test_show_prints_errors_that_python_does_not_read(
    cli: Cli, table: Table, request: pytest.FixtureRequest, errors: str
) -> None:
    table.insert(id=3)
    table.rows("update akadze.jobs set errors = cast(%s as jsonb)", errors)
    assert errors in cli("jobs", "show", "3", "--json").stdout
    assert errors in cli("jobs", "show", "3").stdout
    request.getfixturevalue("person")
    assert errors[1:-1] in "".join(cli("jobs", "show", "3").stdout.split())


@pytest.mark.parametrize("verb", ["show", "requeue", "cancel"])
def test_a_job_that_is_not_there_is_a_failure(cli: Cli, verb: str) -> None:
    result = cli("jobs", verb, str(BIG))
    assert (result.code, result.stdout) == (1, "")
    assert result.stderr == f"error: there is no job {BIG}: it may have been deleted after the retention time\n"


@pytest.mark.parametrize("verb", ["show", "requeue", "cancel"])
@pytest.mark.parametrize("job_id", ["0", str(2**63), "x", "1.5"])
def test_an_id_that_no_job_can_have_is_wrong_use(cli: Cli, verb: str, job_id: str) -> None:
    result = cli("jobs", verb, job_id)
    assert (result.code, result.stdout) == (2, "")
    assert result.stderr


def test_requeue_returns_a_failed_job_to_the_queue(cli: Cli, table: Table) -> None:
    table.insert(id=BIG, state="failed", attempt=3, finished_at=AT)
    result = cli("jobs", "requeue", str(BIG))
    assert (result.code, result.stderr) == (0, "")
    assert result.lines == [
        f"id={BIG} task=mail queue=default state=queued attempt=3 max_attempts=4 cancel_requested_at="
    ]
    assert table.job(BIG)["state"] == "queued"


def test_requeue_takes_several_jobs_and_does_all_or_none(cli: Cli, table: Table) -> None:
    for job_id, state in ((1, "failed"), (2, "failed"), (3, "succeeded")):
        table.insert(id=job_id, state=state)
    result = cli("jobs", "requeue", "2", "3", "1")
    assert (result.code, result.stdout) == (1, "")
    assert result.stderr == "error: job 3 is succeeded: only a failed job can be requeued\n"
    assert [table.job(job_id)["state"] for job_id in (1, 2)] == ["failed", "failed"]
    assert ids(cli("jobs", "requeue", "2", "1", "2", "--json").stdout) == [1, 2]
    assert [table.job(job_id)["state"] for job_id in (1, 2)] == ["queued", "queued"]


def test_cancel_marks_a_job(cli: Cli, table: Table) -> None:
    table.insert(id=BIG)
    table.insert(id=1, state="succeeded")
    rows = json.loads(cli("jobs", "cancel", str(BIG), "1", "--json").stdout)
    assert [(row["id"], row["state"], row["cancel_requested_at"] is None) for row in rows] == [
        (1, "succeeded", True),
        (BIG, "queued", False),
    ]
    assert table.job(BIG)["cancel_requested_at"] is not None
    assert table.job(1)["cancel_requested_at"] is None


@pytest.mark.usefixtures("person")
def test_requeue_and_cancel_tell_a_person_what_became_of_the_job(cli: Cli, table: Table) -> None:
    for job_id, state in ((1, "failed"), (2, "queued"), (3, "running"), (4, "succeeded")):
        table.insert(id=job_id, state=state)
    said = [cli("jobs", "requeue", "1").stdout, *(cli("jobs", "cancel", str(number)).stdout for number in (2, 3, 4))]
    assert said == [
        "Job 1 of task mail is queued: it waits for a worker again.\n",
        "Job 2 of task mail is queued: a worker of its queue cancels it.\n",
        "Job 3 of task mail is running: it is asked to stop.\n",
        "Job 4 of task mail is succeeded: it has ended and stays as it is.\n",
    ]
