"""The exchange: outcomes go out and claimed jobs come in, in one round trip and one commit."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any
from uuid import UUID

from psycopg.pq import TransactionStatus

from akadze import _rows
from akadze._async.transitions import finish, watch_claims
from akadze._claimed import ID, NUMBER, ClaimedRow, ClaimedRun
from akadze._connections import async_caller
from akadze._log import get_logger
from akadze._sqlstates import LOCK_NOT_AVAILABLE, sqlstate
from akadze._statement import Statement, statement
from akadze._states import QUEUED, RUNNING
from akadze._worker import literals
from akadze._worker.connect import HeldRaw
from akadze._worker.hooked import Hooked, Refusal
from akadze._worker.line import Line
from akadze._worker.wire import Reply, Sent
from akadze.app import Akadze
from akadze.hooks import Spoilt, hung_in

_CLAIM_PLAIN = statement("claim", "claim_plain")
_CHOOSE_LIMITED = statement("choose", "choose_limited")
_CHOOSE_FAIR = statement("choose", "choose_fair")
_TAKE_CHOSEN = statement("claim", "take_chosen")
_SURVEY = statement("claim", "survey")
_FIND_LOST = statement("rescue", "find_lost")
_FINISH_RUNS = statement("finish", "finish_runs")
_READ_JOBS = statement("jobs", "read_jobs")
_OWNED_RUNS = statement("finish", "owned_runs")
_RUNS_OF_WORKER = statement("finish", "runs_of_worker")
_FIND_WORKER = statement("workers", "find_worker")
_SET_SLEEPING = statement("workers", "set_sleeping")
_TUNE_SESSION = statement("session", "tune_session")
_LIMIT_WAITING = statement("session", "limit_waiting")
_RESET_WAITING = statement("session", "reset_waiting")
_FIND_TRANSACTION = statement("session", "find_transaction")
_BEGIN_EXCHANGE = statement("session", "begin_exchange")
_COMMIT = statement("session", "commit")

logger = get_logger("akadze.job")

#: An outcome: id, run number, JSON object for finish_runs.
Outcome = tuple[int, int, str]

#: Seconds for which a claim waits for a limit that somebody holds: other workers' claims are over sooner.
_PATIENCE = 1.0


@dataclass(frozen=True, slots=True)
class Answer:
    """What one exchange brought."""

    written: set[tuple[int, int]]
    refused: list[tuple[int, int]]
    rows: list[ClaimedRow]
    #: More may be claimable at once: the look was bounded and what it saw did not fill the slots.
    again: bool = False


@dataclass(frozen=True, slots=True)
class Survey:
    limited: bool
    keyed: bool
    due: bool
    doomed: bool
    unknown: bool
    next_in: float | None


class Exchange:
    """One worker's conversation with the tables: exchanges, and the few questions around them."""

    def __init__(
        self, app: Akadze, worker_id: UUID, queues: Sequence[str], *, fair: bool, hook_patience: float = 10.0
    ) -> None:
        self._app = app
        self._hooked = Hooked(app, hook_patience, self.owned)
        self._worker = str(worker_id)
        self._worker_id = worker_id
        self._queues = list(queues)
        self._all_queues = literals.texts(queues)
        self._all_tasks = literals.texts(sorted(app.tasks))
        self._fair = fair
        self._held: HeldRaw | None = None
        self._stepping = fair
        self._held_up = False
        self._line = Line()

    async def open(self) -> HeldRaw:
        """Return the held connection, opened anew if the last one was given up."""
        if self._held is None:
            self._held = await HeldRaw.open(self._app.engine)
        return self._held

    async def give_up(self) -> None:
        """Close the connections after an error; the next call opens new ones."""
        held, self._held = self._held, None
        self.forget()
        try:
            if held is not None:
                await held.close()
        finally:
            await self._hooked.give_up()

    def forget(self) -> None:
        """Look at the whole line at the next claim."""
        self._line.forget()

    async def survey(self) -> Survey:
        held = await self.open()
        sent: list[Sent] = [(_SURVEY, {"queues": self._all_queues, "tasks": self._all_tasks})]
        if not held.direct:
            sent = [(_TUNE_SESSION, {"local": True}), *sent]
        survey = Survey(*(await self._talk(held, sent))[_SURVEY].rows[0])
        self._stepping = survey.limited or survey.unknown or (self._fair and survey.keyed)
        self.forget()
        return survey

    async def find_lost(self) -> bool:
        """Tell whether another worker's jobs have to be rescued."""
        held = await self.open()
        return bool((await held.rows(_FIND_LOST, rescuer=self._worker))[0][0])

    async def is_registered(self) -> bool:
        held = await self.open()
        return bool((await held.rows(_FIND_WORKER, id=self._worker))[0][0])

    async def set_sleeping(self, sleeping: bool) -> None:
        held = await self.open()
        await held.rows(_SET_SLEEPING, id=self._worker, sleeping=sleeping)

    async def owned(self, runs: Sequence[tuple[int, int]]) -> set[tuple[int, int]]:
        held = await self.open()
        rows = await held.rows(_OWNED_RUNS, ids=[r[0] for r in runs], runs=[r[1] for r in runs], worker=self._worker)
        return {(row[0], row[1]) for row in rows}

    async def runs_of_worker(self) -> set[tuple[int, int]]:
        held = await self.open()
        return {(row[0], row[1]) for row in await held.rows(_RUNS_OF_WORKER, worker=self._worker)}

    async def exchange(self, outcomes: Sequence[Outcome], free: Mapping[str, int]) -> Answer:
        """Write the outcomes, then claim up to ``free`` jobs of each queue.

        If a caller's transaction holds a limit for long, the claim is a plain one, which leaves limited keys alone,
        until the next survey.
        """
        try:
            return await self._exchange(outcomes, free)
        except Exception as error:
            if not (self._stepping and free) or sqlstate(error) != LOCK_NOT_AVAILABLE:
                raise
        if not self._held_up:
            self._held_up = True
            logger.warning(
                "a limit is held for long, by an open transaction that has set it or by slow hooks of another worker: "
                "jobs with limits wait for that"
            )
        await self.give_up()
        self._stepping = False
        return await self._exchange(outcomes, free)

    async def _exchange(self, outcomes: Sequence[Outcome], free: Mapping[str, int]) -> Answer:
        if not self._app.hooks.on_transition:
            return await self._alone(outcomes, free)
        try:
            answer = await self._watched(outcomes, free)
        except Refusal as refusal:
            answer = await self._without(refusal, outcomes, free)
        self._hooked.worked()
        return answer

    async def _without(self, refusal: Refusal, outcomes: Sequence[Outcome], free: Mapping[str, int]) -> Answer:
        """Exchange again without the run that a hook refused, and without those whose hooks cost the connection."""
        refused = {refusal.run} if refusal.run is not None else set()
        spoilt = refusal.spoilt
        while True:
            # What the last try taught of the line was rolled back with it.
            self.forget()
            if spoilt:
                # What it waited for was cancelled, and SQLAlchemy may have given the connection up for that.
                await self._hooked.give_up()
            try:
                return await self._watched_carefully(outcomes, free, refused)
            except Spoilt as lost:
                ending = any(lost.run == (job_id, number) for job_id, number, _ in outcomes)
                if hung_in(lost.error) is None:
                    self._hooked.raise_if_lost(lost.run, lost.error, starting=not ending)
                refused.add(lost.run)
                spoilt = True

    async def _alone(self, outcomes: Sequence[Outcome], free: Mapping[str, int]) -> Answer:
        held = await self.open()
        stepping = bool(free) and self._stepping
        # A transaction of its own where several statements share locks, or where a pooler keeps no session settings;
        # else the pipeline itself is one implicit transaction.
        explicit = stepping or not held.direct
        sent = self._statements(held, outcomes, free, stepping=stepping)
        if explicit:
            sent = [(_BEGIN_EXCHANGE, {}), *sent, (_COMMIT, {})]
        answers = await self._talk(held, sent)
        return self._received(answers, free)

    async def _watched(self, outcomes: Sequence[Outcome], free: Mapping[str, int]) -> Answer:
        """Exchange and call the on_transition hooks in the same transaction; raise Refusal if one of them raises."""
        held = await self._hooked.open(alone=_about_one(outcomes, free))
        stepping = bool(free) and self._stepping
        assert held.owner is not None
        async with held.owner.begin():
            # SQLAlchemy believes that it has begun, and psycopg would begin with its first statement.
            sent = self._statements(held, outcomes, free, stepping=stepping, watched=True)
            answers = await self._talk(held, [(_BEGIN_EXCHANGE, {}), *sent, (_FIND_TRANSACTION, {})])
            answer = self._received(answers, free)
            ended = {key[0]: key for key in answer.written}
            if outcomes:
                for row in answers[_READ_JOBS].as_dicts():
                    if row["id"] in ended:
                        await self._hooked.call(partial(_rows.job, row), RUNNING, row["state"], ended[row["id"]])
            for claimed in answer.rows:
                run = ClaimedRun(self._app, self._worker_id, claimed)
                await self._hooked.call(partial(getattr, run, "job"), QUEUED, RUNNING, (run.id, run.number))
            if answer.rows or answer.written:
                one = (answer.rows[0][ID], answer.rows[0][NUMBER]) if answer.rows else next(iter(answer.written))
                number = answers[_FIND_TRANSACTION].rows[0][0]
                await self._hooked.check_transaction(number, one, starting=bool(answer.rows))
        return answer

    async def _watched_carefully(
        self, outcomes: Sequence[Outcome], free: Mapping[str, int], known: Collection[tuple[int, int]]
    ) -> Answer:
        """Exchange again after a hook has raised, with a savepoint for each job, so that it hurts its own job only."""
        held = await self._hooked.open(alone=_about_one(outcomes, free))
        hooks = self._hooked.hooks()
        stepping = bool(free) and self._stepping
        assert held.owner is not None
        async with held.owner.begin():
            caller = async_caller(held.owner)
            if not held.direct:
                await held.execute(_TUNE_SESSION, local=True)
            chosen = None
            if stepping:
                idle = held.raw.info.transaction_status is TransactionStatus.IDLE
                begin: list[Sent] = [(_BEGIN_EXCHANGE, {})] if idle else []
                answers = await self._talk(held, [*begin, *self._choice(outcomes, free, watched=True)])
                chosen = answers[self._chooser].rows[0]
            written, refused = await finish(caller, hooks, self._worker_id, outcomes, known)
            rows: list[ClaimedRow] = []
            if free:
                if stepping:
                    rows = await held.rows(_TAKE_CHOSEN, **self._taking(free))
                else:
                    rows = await held.rows(_CLAIM_PLAIN, **self._plain_claim(free))
                put_back = await watch_claims(
                    caller,
                    hooks,
                    self._worker_id,
                    [(row[ID], row[NUMBER]) for row in rows],
                    self._hooked.apart(known),
                    put_off=self._hooked.seconds_off,
                )
                rows = [row for row in rows if row[ID] not in put_back]
        return Answer(set(written), refused, rows, self._learn(chosen, rows, free))

    async def _talk(self, held: HeldRaw, sent: Sequence[Sent]) -> dict[Statement, Reply]:
        replies = await held.wire.talk(sent)
        return {statement: reply for (statement, _), reply in zip(sent, replies, strict=True)}

    def _statements(
        self,
        held: HeldRaw,
        outcomes: Sequence[Outcome],
        free: Mapping[str, int],
        *,
        stepping: bool,
        watched: bool = False,
    ) -> list[Sent]:
        """Return the statements of an exchange."""
        sent: list[Sent] = [] if held.direct else [(_TUNE_SESSION, {"local": True})]
        if stepping:
            sent += self._choice(outcomes, free, watched=watched)
        if outcomes:
            text = f"[{','.join([outcome for _, _, outcome in outcomes])}]"
            sent.append((_FINISH_RUNS, {"outcomes": text, "worker": self._worker}))
            if watched:
                # Before the claim, which may start one of them again.
                sent.append((_READ_JOBS, {"ids": [outcome[0] for outcome in outcomes]}))
        if stepping:
            sent.append((_TAKE_CHOSEN, self._taking(free)))
        elif free:
            sent.append((_CLAIM_PLAIN, self._plain_claim(free)))
        return sent

    def _received(self, answers: Mapping[Statement, Reply], free: Mapping[str, int]) -> Answer:
        finished = answers.get(_FINISH_RUNS)
        claimed = answers.get(_TAKE_CHOSEN) or answers.get(_CLAIM_PLAIN)
        chosen = answers.get(self._chooser)
        rows = claimed.rows if claimed is not None else []
        again = self._learn(chosen.rows[0] if chosen is not None else None, rows, free)
        return Answer({(row[0], row[1]) for row in finished.rows} if finished is not None else set(), [], rows, again)

    @property
    def _chooser(self) -> Statement:
        return _CHOOSE_FAIR if self._fair else _CHOOSE_LIMITED

    def _choice(self, outcomes: Sequence[Outcome], free: Mapping[str, int], *, watched: bool) -> list[Sent]:
        sent: list[Sent] = [
            (_LIMIT_WAITING, {"milliseconds": int(_PATIENCE * 1000)}),
            (self._chooser, self._choosing(outcomes, free)),
        ]
        if watched:
            sent.append((_RESET_WAITING, {}))
        return sent

    def _taking(self, free: Mapping[str, int]) -> dict[str, Any]:
        return {
            "queues": self._all_queues if list(free) == self._queues else literals.texts(free),
            "slots": literals.plain(free.values()),
            "tasks": self._all_tasks,
            "worker": self._worker,
        }

    def _plain_claim(self, free: Mapping[str, int]) -> dict[str, Any]:
        # Where a limit is held up, an unfair claim is better than none.
        return {**self._taking(free), **self._line.known(), "fair": self._fair and not self._held_up}

    def _choosing(self, outcomes: Sequence[Outcome], free: Mapping[str, int]) -> dict[str, Any]:
        finishing = literals.plain(outcome[0] for outcome in outcomes)
        return {**self._taking(free), **self._line.known(), **self._line.bounds(), "finishing": finishing}

    def _learn(self, chosen: Any, rows: Sequence[ClaimedRow], free: Mapping[str, int]) -> bool:
        wanted = sum(free.values())
        if chosen is not None:
            self._held_up = False
            return self._line.chosen(chosen, len(rows), wanted)
        self._line.claimed(rows, wanted)
        if len(rows) < wanted and self._fair and not self._held_up and not self._stepping:
            # A key may have come in, which only the other claim serves.
            self._stepping = True
            return True
        return False


def _about_one(outcomes: Sequence[Outcome], free: Mapping[str, int]) -> bool:
    return len(outcomes) + sum(free.values()) <= 1
