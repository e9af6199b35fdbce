"""Contract, section 12: what the fixture akadze_jobs says of jobs, and how it runs them."""

from __future__ import annotations

from tests.plugin.conftest import Run


def test_a_test_sees_and_runs_the_jobs_that_are_committed(run: Run) -> None:
    run(
        """
        import pytest
        from shop import app, pack, ran, send

        def test_it(akadze_jobs):
            assert akadze_jobs.app is app
            assert akadze_jobs.enqueued() == []
            with app.sync_engine.begin() as connection:
                pack.using(session=connection, meta={"a": 1}).enqueue(order=1)
                send.using(session=connection).enqueue(order=2)
            first, second = akadze_jobs.enqueued()
            assert (first.task, first.state, first.meta) == ("pack", "queued", {"a": 1})
            assert first.args == {"order": 1}
            assert akadze_jobs.enqueued("send") == akadze_jobs.enqueued(send) == [second]
            akadze_jobs.assert_enqueued("pack", order=1)
            akadze_jobs.assert_enqueued(send, order=2)
            akadze_jobs.refute_enqueued(pack, order=3)
            akadze_jobs.refute_enqueued("fail")

            akadze_jobs.drain()
            assert ran == [1, 2]
            assert akadze_jobs.enqueued() == []
            akadze_jobs.refute_enqueued("pack")
        """
    ).assert_outcomes(passed=1)


def test_an_assertion_that_does_not_hold_fails(run: Run) -> None:
    run(
        """
        import pytest
        from shop import app, pack

        @pytest.fixture
        def job(akadze_jobs):
            with app.sync_engine.begin() as connection:
                pack.using(session=connection).enqueue(order=1)

        @pytest.mark.parametrize("check", [
            lambda jobs: jobs.assert_enqueued("pack", order=2),
            lambda jobs: jobs.assert_enqueued("pack"),
            lambda jobs: jobs.assert_enqueued("send", order=1),
            lambda jobs: jobs.assert_enqueued("unknown"),
            lambda jobs: jobs.refute_enqueued("pack", order=1),
            lambda jobs: jobs.refute_enqueued("pack", order=1, gift=False),
            lambda jobs: jobs.refute_enqueued("pack"),
            lambda jobs: jobs.refute_enqueued("unknown"),
            lambda jobs: jobs.refute_enqueued("pack", parcel=1),
        ])
        def test_it(akadze_jobs, job, check):
            with pytest.raises(AssertionError):
                check(akadze_jobs)

        def test_its_reverse(akadze_jobs, job):
            akadze_jobs.assert_enqueued("pack", order=1)
            akadze_jobs.refute_enqueued("pack", order=2)
            akadze_jobs.refute_enqueued("pack", order=1, gift=True)
        """
    ).assert_outcomes(passed=10)


def test_jobs_of_an_open_transaction_are_run_on_it_and_vanish(run: Run) -> None:
    run(
        """
        import psycopg
        import pytest
        from sqlalchemy import text
        from sqlalchemy.orm import Session
        from shop import app, pack, ran

        @pytest.fixture(params=["connection", "session", "psycopg"])
        def session(request, akadze_database_url):
            if request.param == "psycopg":
                with psycopg.connect(akadze_database_url) as connection:
                    yield connection
                    connection.rollback()
            else:
                with app.sync_engine.connect() as connection:
                    transaction = connection.begin()
                    yield connection if request.param == "connection" else Session(connection)
                    transaction.rollback()

        @pytest.mark.parametrize("_", range(2))
        def test_it(akadze_jobs, session, _):
            ran.clear()
            pack.using(session=session).enqueue(order=1)
            jobs = akadze_jobs.on(session)
            assert [job.args for job in jobs.enqueued("pack")] == [{"order": 1}]
            jobs.assert_enqueued(pack, order=1)
            akadze_jobs.refute_enqueued(pack)

            jobs.drain()
            assert ran == [1]
            jobs.refute_enqueued(pack)
            assert akadze_jobs.enqueued() == []

        def test_nothing_was_committed(akadze_app):
            with akadze_app.sync_engine.begin() as connection:
                assert connection.execute(text("select count(*) from akadze.jobs")).scalar() == 0
        """
    ).assert_outcomes(passed=7)


def test_what_a_test_leaves_is_gone_before_the_next_one(run: Run) -> None:
    run(
        """
        import pytest
        from sqlalchemy import text
        from akadze.sync import list_limits, list_paused_queues, pause_queue, set_limit
        from shop import app, pack

        @pytest.mark.parametrize("_", range(2))
        def test_it(akadze_jobs, _):
            assert akadze_jobs.enqueued() == []
            assert list_limits(app.sync_engine) == list_paused_queues(app.sync_engine) == ()
            with app.sync_engine.begin() as connection:
                pack.using(session=connection).enqueue(order=1)
                set_limit(connection, "k", 1)
                pause_queue(connection, "mail")

        def test_nothing_is_left(akadze_app):
            with akadze_app.sync_engine.begin() as connection:
                for table in "jobs", "limits", "queue_pauses":
                    assert connection.execute(text(f"select count(*) from akadze.{table}")).scalar() == 0
                pack.using(session=connection).enqueue(order=1)

        def test_what_came_otherwise_is_gone_too(akadze_jobs):
            assert akadze_jobs.enqueued() == []
        """
    ).assert_outcomes(passed=4)


def test_a_session_that_is_left_open_is_named_and_not_waited_for_forever(run: Run) -> None:
    result = run(
        """
        import pytest
        from shop import app, pack

        @pytest.fixture
        def session():
            with app.sync_engine.connect() as connection:
                with connection.begin():
                    pack.using(session=connection).enqueue(order=1)
                with connection.begin():
                    pack.using(session=connection).enqueue(order=2)
                    yield

        def test_it(session, akadze_jobs): ...
        """
    )
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*AkadzeError: a session that is still open has worked on akadze's tables*"])
