"""Contract, section 15: no argument, key or meta is in what an enqueue raises, or in what is logged of it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from typing import Annotated, Any, Literal

import psycopg
import psycopg2
import pytest
from annotated_types import MaxLen
from pydantic import BaseModel, SecretStr, field_validator
from sqlalchemy.exc import SQLAlchemyError

from akadze import Akadze, AkadzeError, DuplicateJob, EnqueueError
from tests.faults.leaking import SECRET
from tests.faults.seen import Seen, seen

__all__ = ["seen"]


class Inner(BaseModel):
    secret: str
    number: int = 0

    @field_validator("secret")
    @classmethod
    def check(cls, value: str) -> str:
        if value.endswith("refused"):
            raise ValueError(f"not {value}")
        return value


class Odd:
    def __repr__(self) -> str:
        return SECRET

    __str__ = __repr__


def bad_arguments() -> dict[str, dict[str, Any]]:
    itself: list[Any] = [SECRET]
    itself.append(itself)
    return {
        "of a wrong type": {"number": SECRET},
        "too long": {"short": SECRET},
        "no choice": {"choice": SECRET},
        "no instant": {"instant": SECRET},
        "in a model": {"inner": {"secret": SECRET, "number": SECRET}},
        "refused by a model": {"inner": {"secret": f"{SECRET} refused"}},
        "unknown to a model": {"inner": {"secret": SECRET, SECRET: object()}, "number": "x"},
        "unknown": {"unknown": SECRET},
        "with a NUL": {"anything": SECRET + "\0"},
        "with a surrogate": {"anything": SECRET + "\ud800"},
        "with a NUL in a key": {"anything": {SECRET + "\0": 1}},
        "nan": {"anything": {SECRET: float("nan")}},
        "no JSON": {"anything": {SECRET: Odd()}},
        "no JSON key": {"anything": {Odd(): SECRET}},
        "endless": {"anything": itself},
        "hidden": {"hidden": SecretStr(SECRET)},
    }


def bad_options() -> dict[str, dict[str, Any]]:
    return {
        "delay": {"delay": SECRET},
        "run_at": {"run_at": SECRET},
        "priority": {"priority": SECRET},
        "max_attempts": {"max_attempts": Odd()},
        "expires_at": {"expires_at": Odd()},
        "long unique_key": {"unique_key": SECRET * 100},
        "unique_key with a NUL": {"unique_key": SECRET + "\0"},
        "limit_key": {"limit_key": SECRET + "\ud800"},
        "no meta": {"meta": SECRET},
        "large meta": {"meta": {SECRET: SECRET * 1000}},
        "meta of no JSON": {"meta": {SECRET: Odd()}},
        "meta with a NUL": {"meta": {SECRET + "\0": SECRET}},
        "meta with nan": {"meta": {SECRET: float("nan")}},
        "unique_key of another type": {"unique_key": Odd()},
    }


def make_task(app: Akadze) -> Any:
    @app.task("task")
    def task(
        number: int = 0,
        short: Annotated[str, MaxLen(3)] = "",
        choice: Literal["a", "b"] = "a",
        instant: datetime | None = None,
        inner: Inner | None = None,
        anything: Any = None,
        hidden: SecretStr | None = None,
    ) -> None: ...

    return task


async def test_arguments_and_options_that_are_refused(app: Akadze, seen: Seen) -> None:
    task = make_task(app)
    calls: dict[str, Callable[[Any], Any]] = {
        "positional": lambda session: task.using(session=session).enqueue(SECRET),
        "item of another type": lambda session: task.using(session=session).enqueue_many([{}, SECRET]),
        "items of another type": lambda session: task.using(session=session).enqueue_many(SECRET),
    }
    for name, arguments in bad_arguments().items():
        calls[name] = lambda session, given=arguments: task.using(session=session).enqueue(**given)
        calls[f"{name}, item"] = lambda session, given=arguments: task.using(session=session).enqueue_many([{}, given])
    for name, options in bad_options().items():
        calls[f"option {name}"] = lambda session, given=options: task.using(session=session, **given).enqueue()

    accepted = set()
    with app.sync_engine.begin() as connection:
        for name, call in calls.items():
            try:
                call(connection)
            except EnqueueError as error:
                seen.add_error(error)
            else:
                accepted.add(name)
    # Nothing is wrong with these, or only if the model says so.
    assert accepted <= {"hidden", "hidden, item"}, accepted
    async with app.engine.begin() as session:
        for name, arguments in bad_arguments().items():
            if name not in accepted:
                with pytest.raises(EnqueueError) as raised:
                    await task.using(session=session).enqueue(**arguments)
                seen.add_error(raised.value)
        bound = task.using(session=session, meta={"m": SECRET}, unique_key=SECRET)
        await bound.enqueue(anything=SECRET)
        with pytest.raises(DuplicateJob) as duplicate:
            await bound.enqueue(anything=SECRET)
        seen.add_error(duplicate.value)
        seen.add(repr(bound))
    for session in (Odd(), SECRET, {SECRET: 1}):
        with pytest.raises(EnqueueError) as raised:
            task.using(session=session)
        seen.add_error(raised.value)


@pytest.mark.parametrize("kind", ["sqlalchemy", "psycopg", "psycopg2"])
@pytest.mark.parametrize("how", ["lock", "read only", "broken", "gone", "no schema", "ended", "cancelled"])
def test_an_error_of_the_database_at_enqueue(how: str, kind: str, app: Akadze, database_url: str, seen: Seen) -> None:
    task = make_task(app)
    seen_ways = {
        "lock": "set local lock_timeout = '20ms'",
        "cancelled": "set local statement_timeout = '20ms'",
        "read only": "set transaction read only",
        "broken": "select 1 / 0",
        "no schema": "alter schema akadze rename to elsewhere",
        "gone": "alter table akadze.workers rename to elsewhere",
        "ended": "select pg_terminate_backend(pg_backend_pid())",
    }
    with psycopg.connect(database_url) as holder:
        if how in ("lock", "cancelled"):
            holder.execute("lock table akadze.jobs in access exclusive mode")
        if kind == "sqlalchemy":
            connection: Any = app.sync_engine.connect()
            connection.begin()
            execute = connection.exec_driver_sql
        else:
            connection = psycopg.connect(database_url) if kind == "psycopg" else psycopg2.connect(database_url)
            cursor = connection.cursor()
            execute = cursor.execute
        try:
            with suppress(Exception):  # some ways are errors themselves
                execute(seen_ways[how])
            bound = task.using(session=connection, unique_key=SECRET, meta={"m": SECRET})
            for call in (lambda: bound.enqueue(anything=SECRET), lambda: bound.enqueue(anything=SECRET)):
                with pytest.raises((psycopg.Error, psycopg2.Error, SQLAlchemyError, AkadzeError)) as raised:
                    call()
                seen.add_error(raised.value)
        finally:
            with suppress(Exception):
                connection.rollback()
            connection.close()
