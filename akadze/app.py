"""The application: engines, registered tasks and schedules."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from threading import Lock
from typing import Any, ParamSpec
from weakref import WeakSet

from sqlalchemy import Engine, create_engine
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from akadze._article import shown, with_article
from akadze._log import get_logger
from akadze._options import check_name
from akadze._schedules import Schedule, ScheduleSpec, make_schedule, read_spec
from akadze._urls import sqlalchemy_url
from akadze.errors import AkadzeError, EnqueueError
from akadze.hooks import Hooks
from akadze.outcomes import BackoffPolicy
from akadze.task import Task

__all__ = ["Akadze"]

logger = get_logger("akadze.app")

P = ParamSpec("P")

_READ = "let the module read the URL in AKADZE_DATABASE_URL, which --database-url sets for it"
#: No server-side prepared statements, and an encoding that has every character, whatever the role defaults to.
_PSYCOPG: dict[str, Any] = {"prepare_threshold": None, "client_encoding": "utf8"}


class Akadze:
    """The application: an engine, the registered tasks and the schedules.

    Pass ``database_url`` and the app builds an async engine that it owns (and closes in ``aclose``), with server-side
    prepared statements off, so that a transaction-mode pooler may sit in front. Pass ``engine`` instead to share a
    pool; the app then leaves it open. One of the two is required. ``sync_engine`` is the blocking engine of the same
    database; without it the app makes one of the same URL when it is first asked for, so pass one if ``engine`` has
    ``connect_args``, a creator or listeners that say more than its URL. ``database_url`` may be a function that returns
    the URL: it is called when an engine is first asked for, so settings may still change until then, and not again
    once it has answered.

    ``pool_size`` sets the pool of the engine that the app builds (SQLAlchemy's default is 5, plus 10 overflow). A
    worker holds a few connections of its own beside the pool; in the pool, count one for each ``complete_tx`` block
    that runs at once. ``grace`` is how late a periodic fire may still be enqueued. ``retention`` is how long finished
    jobs and periodic runs are kept before a worker deletes them; periodic runs are kept as long as ``grace`` at least,
    and those of tasks without a schedule in this app for 400 days. The attribute ``hooks`` takes callables (see
    ``Hooks``), and ``tasks`` has each registered Task by its name.

    Raises AkadzeError for wrong options or a URL that is not of PostgreSQL. Nothing connects before it is used.
    """

    def __init__(
        self,
        *,
        engine: AsyncEngine | None = None,
        sync_engine: Engine | None = None,
        database_url: str | Callable[[], str] | None = None,
        pool_size: int | None = None,
        grace: timedelta = timedelta(minutes=1),
        retention: timedelta = timedelta(days=7),
    ) -> None:
        if (engine is None) == (database_url is None):
            raise AkadzeError("Akadze takes one of engine and database_url: pass exactly one of the two")
        _check_engine(engine, AsyncEngine, "engine", "create_async_engine")
        _check_engine(sync_engine, Engine, "sync_engine", "create_engine")
        if pool_size is not None and (isinstance(pool_size, bool) or not isinstance(pool_size, int) or pool_size < 1):
            raise AkadzeError(f"pool_size is {shown(pool_size)}: it must be a whole number of at least 1")
        if pool_size is not None and engine is not None:
            raise AkadzeError("pool_size sizes the pool that the app builds: size the pool of your own engine there")
        for name, value in (("grace", grace), ("retention", retention)):
            if not isinstance(value, timedelta) or value <= timedelta(0):
                raise AkadzeError(f"{name} is {shown(value)}: it must be a timedelta longer than zero")
        self.grace = grace
        self.retention = retention
        self.hooks = Hooks()
        self.tasks: dict[str, Task[Any]] = {}
        self._schedules: list[Schedule] = []
        self._sizing: dict[str, Any] = {} if pool_size is None else {"pool_size": pool_size}
        self._owns_engine = engine is None
        self._owns_sync_engine = sync_engine is None
        self._engine = engine
        self._sync_engine = sync_engine
        self._engines_lock = Lock()
        self._database_url = database_url
        self._engine_is_known = False
        if engine is None and not callable(database_url):
            self._engine = _build_engine(database_url, self._sizing)
        _APPS.add(self)

    @property
    def engine(self) -> AsyncEngine:
        """The engine of the app.

        Raises AkadzeError if ``database_url`` is a function, and what it returns is no URL of PostgreSQL.
        """
        if self._engine is None:
            with self._engines_lock:
                if self._engine is None and callable(self._database_url):
                    self._engine = _build_engine(self._database_url(), self._sizing)
        assert self._engine is not None
        self._engine_is_known = True
        return self._engine

    @property
    def sync_engine(self) -> Engine:
        """The blocking engine of the same database, made when it is first asked for. Raises as ``engine`` does."""
        if self._sync_engine is not None:
            return self._sync_engine
        url = self.engine.url
        with self._engines_lock:
            if self._sync_engine is None:
                self._sync_engine = create_engine(
                    sqlalchemy_url(url.set(drivername="postgresql").render_as_string(hide_password=False)),
                    connect_args=_PSYCOPG,
                    hide_parameters=True,
                    **self._sizing,
                )
            return self._sync_engine

    def _use_database(self, database_url: str) -> None:
        """Be on this database, whichever the app was made for. For the command line, before anything connects.

        Raises AkadzeError if somebody else may hold an engine of another database: half of the work would go there.
        """
        wanted = _build_engine(database_url, self._sizing)
        made = [engine.url for engine in (self._engine, self._sync_engine) if engine is not None]
        if any(url.set(drivername="") != wanted.url.set(drivername="") for url in made):
            if not (self._owns_engine and self._owns_sync_engine):
                raise AkadzeError(f"the app was made with an engine of its module's own, on another database: {_READ}")
            if self._engine_is_known:
                raise AkadzeError(
                    f"the app's engine was asked for while its module was imported, on another database: {_READ}"
                )
            self._engine = None
        if self._engine is None:
            self._engine = wanted

    def _after_fork(self) -> None:
        # The connections are the parent's: the child uses none of them, and does not end them either.
        self._engines_lock = Lock()
        if self._owns_engine and self._engine is not None:
            self._engine.sync_engine.dispose(close=False)
        if self._owns_sync_engine and self._sync_engine is not None:
            self._sync_engine.dispose(close=False)

    async def aclose(self) -> None:
        """Close the engines that the app built; those that were passed in stay open."""
        if self._owns_engine and self._engine is not None:
            await self._engine.dispose()
        self.close()

    def close(self) -> None:
        """Close the blocking engine, if the app built one. For code that used no async engine."""
        if self._owns_sync_engine and self._sync_engine is not None:
            self._sync_engine.dispose()

    def include(self, *modules: str) -> None:
        """Import each module and call its ``register(app)``.

        Modules own registration (``@app.task``, ``@app.periodic``, ``app.register``). There is no package walk and no
        import-for-side-effect convention. Raises AkadzeError for a module without a callable ``register``, and for what
        is no full name of a module; an error of the import comes out as it is.
        """
        for module in modules:
            _check_module_name(module)
        for module in modules:
            register = getattr(importlib.import_module(module), "register", None)
            if not callable(register):
                raise AkadzeError(
                    f"module {module!r} has no register(app) function: define one that registers its tasks"
                )
            register(self)

    def register(
        self,
        fn: Callable[P, Any],
        *,
        name: str,
        queue: str = "default",
        max_attempts: int = 3,
        timeout: timedelta | None = None,
        priority: int = 0,
        backoff: BackoffPolicy | None = None,
    ) -> Task[P]:
        """Bind a callable into the task registry without decorating on ``app``.

        Same options and validation as ``@app.task``. Returns the registered Task so the caller can enqueue it.
        ``timeout`` is not a hard limit for a sync callable: it runs in a thread, which keeps running after the timeout
        while the job is retried or failed, so a retry can overlap it, and the thread stays out of ``Worker.slots``.
        Registering one with a timeout logs a warning. Raises AkadzeError for a name that is taken, options that are
        not allowed, and a signature that cannot work.
        """
        task = Task(
            self,
            name,
            fn,
            queue=queue,
            max_attempts=max_attempts,
            timeout=timeout,
            priority=priority,
            backoff=backoff,
        )
        if name in self.tasks:
            raise AkadzeError(f"task {name!r} is registered already: give each task a name of its own")
        if timeout is not None and not task.is_async:
            logger.warning(
                "task %s is a plain function with a timeout: its thread cannot be stopped, so it may still run while "
                "the job is retried or failed",
                name,
            )
        self.tasks[name] = task
        return task

    def task(
        self,
        name: str,
        *,
        queue: str = "default",
        max_attempts: int = 3,
        timeout: timedelta | None = None,
        priority: int = 0,
        backoff: BackoffPolicy | None = None,
    ) -> Callable[[Callable[P, Any]], Task[P]]:
        """Register the decorated function as task ``name`` and return its Task.

        ``queue`` is where its jobs go; workers claim from the queues they are started with. ``max_attempts`` is the
        budget including the first run. A run longer than ``timeout`` counts as an error and is retried. ``priority`` is
        the default for its jobs (higher is claimed first). ``backoff`` maps the attempt number to the delay before the
        next one (default: exponential with jitter, capped at 300 s). Arguments are validated by the signature. Same
        options and errors as ``register``.
        """
        _check_named(name, "task")

        def decorate(fn: Callable[P, Any]) -> Task[P]:
            return self.register(
                fn,
                name=name,
                queue=queue,
                max_attempts=max_attempts,
                timeout=timeout,
                priority=priority,
                backoff=backoff,
            )

        return decorate

    def periodic(
        self,
        name: str,
        *,
        cron: str | None = None,
        every: timedelta | None = None,
        overlap: bool = True,
        queue: str = "default",
        max_attempts: int = 3,
        timeout: timedelta | None = None,
        timezone: str | None = None,
        backoff: BackoffPolicy | None = None,
    ) -> Callable[[Callable[..., Any]], Task[Any]]:
        """Register the decorated function as a task that runs on a schedule.

        Give exactly one of ``cron`` (five fields, UTC unless ``timezone`` names an IANA zone) and ``every`` (a
        timedelta). Every worker runs the schedule; each due fire is enqueued once across the cluster.
        ``overlap=False`` holds a fire back while the previous job is queued or running, for at most the app's
        ``grace``. ``queue``, ``max_attempts``, ``timeout`` and ``backoff`` are those of ``task``; periodic jobs have
        priority 0. Raises AkadzeError, and registers nothing, for a schedule that is wrong or can never fire.
        """
        _check_named(name, "periodic")
        schedule = make_schedule(
            name, cron=cron, every=every, overlap=overlap, queue=queue, timezone=timezone, default_queue=queue
        )

        def decorate(fn: Callable[..., Any]) -> Task[Any]:
            task = self.register(
                fn, name=name, queue=queue, max_attempts=max_attempts, timeout=timeout, backoff=backoff
            )
            try:
                _check_runs_alone(task)
            except AkadzeError:
                del self.tasks[name]
                raise
            self._schedules.append(schedule)
            return task

        return decorate

    def add_schedule(
        self,
        name: str,
        *,
        cron: str | None = None,
        every: timedelta | None = None,
        overlap: bool = True,
        queue: str | None = None,
        timezone: str | None = None,
    ) -> None:
        """Attach a periodic schedule to an already registered task. Returns nothing.

        Same ``cron``, ``every``, ``overlap`` and ``timezone`` as ``periodic``. ``queue`` defaults to the task's queue.
        Raises AkadzeError if the task is not registered or needs arguments, and for a schedule that is wrong.
        """
        self.add_schedules(
            [ScheduleSpec(name=name, cron=cron, every=every, overlap=overlap, queue=queue, timezone=timezone)]
        )

    def add_schedules(self, specs: Sequence[ScheduleSpec | Mapping[str, object]]) -> None:
        """Attach many schedules from already-parsed specs: all of them, or none if one is wrong. Returns nothing.

        Raises AkadzeError as ``add_schedule`` does, and for what is no list of specs.
        """
        if isinstance(specs, Mapping | str | bytes) or not isinstance(specs, Iterable):
            raise AkadzeError(f"specs is {with_article(type(specs))}: give a list of ScheduleSpecs or of mappings")
        schedules = []
        for spec in map(read_spec, specs):
            task = self.tasks.get(check_name("a task's name", spec.name))
            if task is None:
                raise AkadzeError(f"task {spec.name!r} is not registered: register it before its schedule")
            _check_runs_alone(task)
            schedules.append(
                make_schedule(
                    spec.name,
                    cron=spec.cron,
                    every=spec.every,
                    overlap=spec.overlap,
                    queue=spec.queue,
                    timezone=spec.timezone,
                    default_queue=task.queue,
                )
            )
        self._schedules += schedules


Akadze.__module__ = "akadze"

_APPS: WeakSet[Akadze] = WeakSet()


def _after_fork() -> None:
    for app in list(_APPS):
        app._after_fork()  # noqa: SLF001 - this module's own


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_after_fork)


def _check_named(name: object, decorator: str) -> None:
    # Before what the decorator returns is called: without a name it never would be.
    if callable(name):
        raise AkadzeError(
            f'a task\'s name must be a str, not {with_article(type(name))}: write @app.{decorator}("name") above it'
        )
    check_name("a task's name", name)


def _check_module_name(name: object) -> None:
    if not isinstance(name, str):
        raise AkadzeError(f"a module to include is {with_article(type(name))}: give its full name, a str")
    if not name or name.startswith("."):
        raise AkadzeError(f"a module to include is {shown(name)}: give its full name, for example 'project.tasks'")


def _check_runs_alone(task: Task[Any]) -> None:
    try:
        task.arguments.to_json({})
    except EnqueueError as error:
        raise AkadzeError(f"a task on a schedule runs without arguments, give each a default: {error}") from None


def _check_engine(engine: object, kind: type, name: str, maker: str) -> None:
    if engine is None:
        return
    if not isinstance(engine, kind):
        raise AkadzeError(f"{name} is of type {type(engine).__name__}: pass the result of SQLAlchemy's {maker}")
    dialect = engine.dialect.name  # type: ignore[attr-defined]  # both kinds have it
    if dialect != "postgresql":
        raise AkadzeError(f"{name} belongs to a {dialect} database: akadze keeps its jobs in PostgreSQL")


def _build_engine(database_url: Any, sizing: Mapping[str, Any]) -> AsyncEngine:
    url = sqlalchemy_url(database_url)
    asyncpg = url.startswith("postgresql+asyncpg:")
    try:
        # An error's text shows no parameters: they are arguments of jobs, and it ends up in logs.
        return create_async_engine(
            url, connect_args={"statement_cache_size": 0} if asyncpg else _PSYCOPG, hide_parameters=True, **sizing
        )
    except ModuleNotFoundError as error:
        raise AkadzeError(
            f"the database_url names a driver that is not installed ({error.name}): install it, or write postgresql://"
        ) from error
