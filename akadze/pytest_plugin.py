"""The pytest plugin: a database for tests, the app under test, and what tests ask about its jobs.

Fixtures: ``akadze_database_url``, ``akadze_app``, ``akadze_jobs`` and ``akadze_async_jobs``. None of them is used by a
test that does not ask for it, and none needs a plugin for async tests. Nothing of akadze but this module is imported
before that.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, overload

import pytest

if TYPE_CHECKING:
    from akadze._session_types import AnyAsyncSession, AnySyncSession
    from akadze.app import Akadze
    from akadze.job import Job
    from akadze.task import Task

__all__ = ["AsyncJobs", "Jobs"]

_URL = "AKADZE_DATABASE_URL"


class Jobs:
    """The jobs of one app, for blocking tests. The fixture ``akadze_jobs`` is one.

    It sees what is committed, and runs jobs as ``akadze.sync.testing.drain`` does; ``on(session)`` gives the same for
    the open transaction of a session. ``app`` is the app.
    """

    def __init__(self, app: Akadze, *, session: Any = None) -> None:
        self.app = app
        self._session = session

    @overload
    def on(self, session: AnyAsyncSession, /) -> AsyncJobs: ...

    @overload
    def on(self, session: AnySyncSession, /) -> Jobs: ...

    def on(self, session: Any, /) -> Jobs | AsyncJobs:
        """Return the same for an open connection or session, and in its transaction: an async one gives AsyncJobs.

        What the session has not committed is seen and run, and all of it vanishes with its rollback.
        """
        return _on(self.app, session)

    def enqueued(self, task: str | Task[Any] | None = None, /) -> list[Job]:
        """Return the queued and running jobs, of one task if it is given, in the order in which they came in."""
        from akadze._sync.testing import enqueued_on

        return enqueued_on(self._source, task)

    def assert_enqueued(self, task: str | Task[Any], /, **arguments: Any) -> None:
        """Raise AssertionError unless a queued or running job has this task and these arguments.

        Arguments are compared in their stored form, so give them as to ``enqueue``. A task that is not registered and
        arguments that do not fit it are AssertionErrors too.
        """
        __tracebackhide__ = True
        from akadze._sync.testing import assert_enqueued_on

        assert_enqueued_on(self._source, self.app, task, arguments)

    def refute_enqueued(self, task: str | Task[Any], /, **arguments: Any) -> None:
        """Raise AssertionError if a queued or running job has this task and these arguments, or any if none are given.

        A task that is not registered and arguments that do not fit it are AssertionErrors too: the test would always
        pass.
        """
        __tracebackhide__ = True
        from akadze._sync.testing import refute_enqueued_on

        refute_enqueued_on(self._source, self.app, task, arguments)

    def drain(self, *, limit: int = 1000) -> None:
        """Run every job that is ready now, one after another, as ``akadze.sync.testing.drain`` does."""
        from akadze.sync.testing import drain

        drain(self.app, limit=limit, session=self._session)

    @property
    def _source(self) -> Any:
        return self.app.sync_engine if self._session is None else self._session


class AsyncJobs:
    """The jobs of one app, for async tests: what ``Jobs`` has, awaited. The fixture ``akadze_async_jobs`` is one."""

    def __init__(self, app: Akadze, *, session: Any = None) -> None:
        self.app = app
        self._session = session

    @overload
    def on(self, session: AnyAsyncSession, /) -> AsyncJobs: ...

    @overload
    def on(self, session: AnySyncSession, /) -> Jobs: ...

    def on(self, session: Any, /) -> Jobs | AsyncJobs:
        """Return the same for an open connection or session, and in its transaction: a blocking one gives Jobs."""
        return _on(self.app, session)

    async def enqueued(self, task: str | Task[Any] | None = None, /) -> list[Job]:
        """Return the queued and running jobs, of one task if it is given, in the order in which they came in."""
        from akadze._async.testing import enqueued_on

        return await enqueued_on(self._source, task)

    async def assert_enqueued(self, task: str | Task[Any], /, **arguments: Any) -> None:
        """Raise AssertionError unless a queued or running job has this task and these arguments, as ``Jobs`` does."""
        __tracebackhide__ = True
        from akadze._async.testing import assert_enqueued_on

        await assert_enqueued_on(self._source, self.app, task, arguments)

    async def refute_enqueued(self, task: str | Task[Any], /, **arguments: Any) -> None:
        """Raise AssertionError if a queued or running job has this task and these arguments, or any if none are given.

        As ``Jobs`` does.
        """
        __tracebackhide__ = True
        from akadze._async.testing import refute_enqueued_on

        await refute_enqueued_on(self._source, self.app, task, arguments)

    async def drain(self, *, limit: int = 1000) -> None:
        """Run every job that is ready now, one after another, as ``akadze.testing.drain`` does."""
        from akadze.testing import drain

        await drain(self.app, limit=limit, session=self._session)

    @property
    def _source(self) -> Any:
        return self.app.engine if self._session is None else self._session


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini("akadze_app", "The app that the fixture akadze_app gives, as module:attribute.", default="")


@pytest.fixture(scope="session")
def akadze_database_url() -> Iterator[str]:
    """The URL of a database with akadze's schema, for all tests of this process.

    It is the one that AKADZE_DATABASE_URL names, which has to have `test` as a word of its name, else one on a
    PostgreSQL that is started for these tests (akadze[embedded]) and removed with them. Each process of pytest-xdist
    has a database for itself. While it is in use, AKADZE_DATABASE_URL names it.
    """
    from akadze._test_database import database_for_tests

    worker = os.environ.get("PYTEST_XDIST_WORKER", "")
    with database_for_tests(os.environ.get(_URL), worker) as url, pytest.MonkeyPatch.context() as patch:
        patch.setenv(_URL, url)
        yield url


@pytest.fixture(scope="session")
def akadze_app(pytestconfig: pytest.Config, akadze_database_url: str) -> Iterator[Akadze]:
    """The app that the ini option akadze_app names, as module:attribute. Override this fixture to make it yourself.

    The app has to be on the database of ``akadze_database_url``; one with ``database_url=lambda: os.environ[...]``
    is, whenever its module was imported.
    """
    from akadze._test_database import close_app, load_app

    app = load_app(pytestconfig.getini("akadze_app"), akadze_database_url)
    yield app
    close_app(app)


@pytest.fixture
def akadze_jobs(akadze_app: Akadze) -> Iterator[Jobs]:
    """The jobs of ``akadze_app``. What is in akadze's tables is deleted before the test and after it.

    Raises AkadzeError if `test` is no word in the name of the app's database.
    """
    from akadze._test_database import emptied

    with emptied(akadze_app):
        yield Jobs(akadze_app)


@pytest.fixture
def akadze_async_jobs(akadze_jobs: Jobs) -> AsyncJobs:
    """The same for async tests."""
    return AsyncJobs(akadze_jobs.app)


def _on(app: Akadze, session: Any) -> Jobs | AsyncJobs:
    from akadze._connections import is_async_session

    return AsyncJobs(app, session=session) if is_async_session(session) else Jobs(app, session=session)
