"""The exchange: outcomes go out and claimed jobs come in, in one round trip and one commit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy.ext.asyncio import AsyncConnection

from akadze._async.transitions import finish, watch_claims
from akadze._claimed import PRIORITY, QUEUE, RUN_AT, ClaimedRow
from akadze._connections import async_caller
from akadze._statement import statement
from akadze._worker.connect import HeldRaw, open_held
from akadze.app import Akadze

_CLAIM_PLAIN = statement("claim", "claim_plain")
_CHOOSE_LIMITED = statement("choose", "choose_limited")
_CHOOSE_FAIR = statement("choose", "choose_fair")
_TAKE_CHOSEN = statement("claim", "take_chosen")
_SURVEY = statement("claim", "survey")
_FIND_LOST = statement("rescue", "find_lost")
_FINISH_RUNS = statement("finish", "finish_runs")
_OWNED_RUNS = statement("finish", "owned_runs")
_RUNS_OF_WORKER = statement("finish", "runs_of_worker")
_SET_SLEEPING = statement("workers", "set_sleeping")
_TUNE_SESSION = statement("session", "tune_session")

#: An outcome: id, run number, JSON object for finish_runs.
Outcome = tuple[int, int, str]

#: Keys looked at per level in one claim. Up to this many the choice is exact; beyond, claims rotate through them.
_LANES = 300
_LEAST_SPARE = 10


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
    due: bool
    doomed: bool
    unknown: bool
    next_in: float | None


class Exchange:
    """One worker's conversation with the tables: exchanges, and the few questions around them."""

    def __init__(self, app: Akadze, worker_id: UUID, queues: Sequence[str], *, fair: bool) -> None:
        self._app = app
        self._worker = str(worker_id)
        self._worker_id = worker_id
        self._queues = list(queues)
        self._tasks = sorted(app.tasks)
        self._fair = fair
        self._held: HeldRaw | None = None
        self._hooked: AsyncConnection | None = None
        self._stepping = fair
        # What the answers taught: where each level's line begins, candidates beyond the slots, where the keys go on.
        self._known: dict[tuple[str, int], datetime] = {}
        self._spare = float(_LEAST_SPARE)
        self._after = ""

    async def open(self) -> HeldRaw:
        """Return the held connection, opened anew if the last one was given up."""
        if self._held is None:
            self._held = await HeldRaw.open(self._app.engine)
        return self._held

    async def give_up(self) -> None:
        """Close the connections after an error; the next call opens new ones."""
        held, self._held = self._held, None
        hooked, self._hooked = self._hooked, None
        self.forget()
        try:
            if held is not None:
                await held.close()
        finally:
            if hooked is not None:
                await hooked.invalidate()
                await hooked.close()

    def forget(self) -> None:
        """Look at the whole line at the next claim."""
        self._known.clear()

    async def survey(self) -> Survey:
        held = await self.open()
        row = (await held.rows(_SURVEY, queues=self._queues, tasks=self._tasks))[0]
        survey = Survey(*row)
        self._stepping = self._fair or survey.limited or survey.unknown
        self.forget()
        return survey

    async def find_lost(self) -> bool:
        """Tell whether some worker's jobs have to be rescued."""
        held = await self.open()
        return bool((await held.rows(_FIND_LOST))[0][0])

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
        """Write the outcomes, then claim up to ``free`` jobs of each queue."""
        hooks = self._app.hooks.on_transition
        if hooks:
            answer = await self._with_hooks(outcomes, free)
        else:
            answer = await self._raw(outcomes, free)
        return answer

    async def _raw(self, outcomes: Sequence[Outcome], free: Mapping[str, int]) -> Answer:
        held = await self.open()
        stepping = bool(free) and self._stepping
        finished = chosen = claimed = None
        # A transaction of its own where several statements share locks, or where a pooler keeps no session settings;
        # else the pipeline itself is one implicit transaction.
        explicit = stepping or not held.direct
        async with held.raw.pipeline():
            if explicit:
                await held.raw.execute("begin isolation level read committed", prepare=False)
            if not held.direct:
                await held.execute(_TUNE_SESSION, local=True)
            if stepping:
                chosen = await held.execute(self._choose(), **self._choosing(outcomes, free))
            if outcomes:
                text = f"[{','.join([outcome for _, _, outcome in outcomes])}]"
                finished = await held.execute(_FINISH_RUNS, outcomes=text, worker=self._worker)
            if stepping:
                claimed = await held.execute(_TAKE_CHOSEN, **self._taking(free))
            elif free:
                claimed = await held.execute(_CLAIM_PLAIN, **self._taking(free), **self._knowing())
            if explicit:
                await held.raw.execute("commit", prepare=False)
        written = {(row[0], row[1]) for row in await finished.fetchall()} if finished is not None else set()
        rows = await claimed.fetchall() if claimed is not None else []
        again = self._learn(await chosen.fetchone() if chosen is not None else None, rows, free)
        return Answer(written, [], rows, again)

    async def _with_hooks(self, outcomes: Sequence[Outcome], free: Mapping[str, int]) -> Answer:
        hooks = self._app.hooks.on_transition
        if self._hooked is None:
            self._hooked = await open_held(self._app.engine)
        stepping = bool(free) and self._stepping
        chosen = None
        written: list[tuple[int, int]] = []
        refused: list[tuple[int, int]] = []
        rows: list[ClaimedRow] = []
        async with self._hooked.begin():
            caller = async_caller(self._hooked)
            await caller.rows(_TUNE_SESSION, local=True)
            if stepping:
                chosen = (await caller.rows(self._choose(), **self._choosing(outcomes, free)))[0]
            if outcomes:
                written, refused = await finish(caller, hooks, self._worker_id, outcomes)
            if free:
                claim = _TAKE_CHOSEN if stepping else _CLAIM_PLAIN
                more = {} if stepping else self._knowing()
                rows = [tuple(row.values()) for row in await caller.rows(claim, **self._taking(free), **more)]
                put_back = await watch_claims(caller, hooks, self._worker_id, [row[0] for row in rows])
                rows = [row for row in rows if row[0] not in put_back]
        again = self._learn(tuple(chosen.values()) if chosen is not None else None, rows, free)
        return Answer(set(written), refused, rows, again)

    def _choose(self) -> Any:
        return _CHOOSE_FAIR if self._fair else _CHOOSE_LIMITED

    def _taking(self, free: Mapping[str, int]) -> dict[str, Any]:
        return {"queues": list(free), "slots": list(free.values()), "tasks": self._tasks, "worker": self._worker}

    def _knowing(self) -> dict[str, Any]:
        return {
            "known_queues": [queue for queue, _ in self._known],
            "known_priorities": [priority for _, priority in self._known],
            "known_run_ats": list(self._known.values()),
        }

    def _choosing(self, outcomes: Sequence[Outcome], free: Mapping[str, int]) -> dict[str, Any]:
        return {
            **self._taking(free),
            **self._knowing(),
            "finishing": [outcome[0] for outcome in outcomes],
            "lanes": _LANES,
            "after": self._after,
            "spare": int(self._spare),
        }

    def _learn(self, chosen: Any, rows: Sequence[ClaimedRow], free: Mapping[str, int]) -> bool:
        wanted = sum(free.values())
        if chosen is None:
            # The last job of a level is where its line begins now.
            for row in rows:
                self._known[(row[QUEUE], row[PRIORITY])] = row[RUN_AT]
            if len(rows) < wanted:
                self.forget()
            return False
        _, _, lanes, last_key, windows = chosen
        bounded = lanes is not None and lanes >= _LANES
        self._after = last_key if bounded else ""
        if len(rows) < wanted:
            self._spare = min(2 * self._spare, 6 * wanted + _LEAST_SPARE)
            self.forget()
        else:
            self._spare = max(_LEAST_SPARE, self._spare * 0.9)
            for queue, priority, began in windows or []:
                self._known[(queue, priority)] = datetime.fromisoformat(began)
        return bounded and len(rows) < wanted
