"""Claims statement by statement, as an exchange makes them, on a connection that the test steers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID, uuid4

from akadze._statement import Statement, statement
from tests.claims.clients import Client, Row

CLAIM_PLAIN = statement("claim", "claim_plain")
CHOOSE_LIMITED = statement("choose", "choose_limited")
CHOOSE_FAIR = statement("choose", "choose_fair")
TAKE_CHOSEN = statement("claim", "take_chosen")
FINISH_RUNS = statement("finish", "finish_runs")

#: Of the queue "default" alone, or of each queue.
Slots = int | Mapping[str, int]


@dataclass(frozen=True)
class Claimer:
    """One worker's side of a claim. ``choose`` None: a plain claim."""

    client: Client
    choose: Statement | None = None
    take: Statement = TAKE_CHOSEN
    plain: Statement = CLAIM_PLAIN
    tasks: Sequence[str] = ("work",)
    worker: UUID = field(default_factory=uuid4)
    lanes: int | None = None
    spare: int = 10
    near: int = 100
    fair: bool = False

    async def claim(self, slots: Slots, **known: Any) -> list[Row]:
        """Claim in a transaction of its own."""
        async with self.client.transaction():
            if self.choose is None:
                return await self.claim_plain(slots, **known)
            await self.choose_jobs(slots, **known)
            return await self.take_jobs(slots)

    async def claim_plain(self, slots: Slots, *, known: Sequence[tuple[str, int, Any]] = ()) -> list[Row]:
        return await self.client.run(self.plain, **self._taking(slots), **_knowing(known), fair=self.fair)

    async def choose_jobs(
        self,
        slots: Slots,
        *,
        known: Sequence[tuple[str, int, Any]] = (),
        finishing: Sequence[int] = (),
        after: str = "",
    ) -> Row:
        """The first half, which takes the locks on limits."""
        assert self.choose is not None
        rows = await self.client.run(
            self.choose,
            **self._taking(slots),
            **_knowing(known),
            finishing=list(finishing),
            lanes=self.lanes,
            after=after,
            near=self.near,
            spare=self.spare,
        )
        return rows[0]

    async def take_jobs(self, slots: Slots) -> list[Row]:
        """The second half."""
        return await self.client.run(self.take, **self._taking(slots))

    async def finish(self, jobs: Sequence[Row], state: str = "succeeded", **fields: Any) -> list[Row]:
        """Write outcomes; the answer names those that were written."""
        return await self.client.run(FINISH_RUNS, outcomes=outcomes(jobs, state, **fields), worker=str(self.worker))

    def _taking(self, slots: Slots) -> dict[str, Any]:
        free = {"default": slots} if isinstance(slots, int) else slots
        return {
            "queues": list(free),
            "slots": list(free.values()),
            "tasks": sorted(self.tasks),
            "worker": str(self.worker),
        }


def outcomes(jobs: Sequence[Row], state: str, **fields: Any) -> str:
    return json.dumps([{"id": job["id"], "run": job["run_count"], "state": state, **fields} for job in jobs])


def _knowing(known: Sequence[tuple[str, int, Any]]) -> dict[str, Any]:
    return {
        "known_queues": [queue for queue, _, _ in known],
        "known_priorities": [priority for _, priority, _ in known],
        "known_run_ats": [run_at for _, _, run_at in known],
        "known_ids": [0 for _ in known],
    }
