-- The one door out of running, and what belongs to it.

-- name: finish_runs
-- Writes outcomes of runs that ended: [{"id", "run", "state", "attempt", "snoozes", "delay", "error", "result"}] as one JSON parameter.
-- Guarded: only runs that this worker still owns (worker, run number, running) are written; the answer names them with the state
-- they got, so a run that lost its job writes nothing.
-- skip locked: a row that somebody's open transaction holds (request_cancel) does not hold up the others; it is missing in the
-- answer, and the worker asks owned_runs about it: still owned means try again, else it is lost.
-- They are updated by the place where they were locked, without a second look into an index. A row that was changed between the
-- snapshot and the lock (a cancel request) has a newer version that this statement does not see: it is missing likewise.
-- Each run is found by its job's id: nothing that says running may be a plain condition there, or the planner may read the index
-- of what runs once for each outcome, if it was nearly empty at the last analyse.
-- Rows are locked in id order, as everywhere. A cancel request wins over everything but success.
-- The end is told by the clock: the transaction of a drain may be older than the start.
with outcome as materialized (
  select o.id, o.run, o.state, o.attempt, o.snoozes, o.delay, o.error, o.result
  from jsonb_to_recordset(cast(cast(:outcomes as text) as jsonb)) as o(
    id bigint, run integer, state text, attempt integer, snoozes integer, delay double precision, error jsonb, result jsonb)
  order by o.id
), mine as materialized (
  select j.place, o.run, o.attempt, o.snoozes, o.delay, o.error, o.result,
    case when j.cancel_requested_at is not null and o.state <> 'succeeded' then 'cancelled' else o.state end as state
  from outcome o
  cross join lateral (
    select j.ctid as place, j.cancel_requested_at
    from akadze.jobs j
    where j.id = o.id and j.state || '' = 'running' and j.worker_id = cast(:worker as uuid) and j.run_count = o.run
    for update of j skip locked
  ) j
)
update akadze.jobs j
set state = m.state,
  attempt = coalesce(m.attempt, j.attempt),
  snoozes = coalesce(m.snoozes, j.snoozes),
  run_at = case when m.state = 'queued' and m.delay is not null then now() + make_interval(secs => m.delay) else j.run_at end,
  finished_at = case when m.state <> 'queued' then clock_timestamp() end,
  worker_id = null,
  errors = case
    when m.error is null then j.errors
    when jsonb_array_length(j.errors) >= 10 then (j.errors - 0) || jsonb_build_array(m.error)
    else j.errors || jsonb_build_array(m.error) end,
  result = case when m.state = 'succeeded' then nullif(m.result, 'null') else j.result end
from mine m
where j.ctid = m.place
returning j.id, j.run_count, j.state

-- name: complete_run
-- Finishes one run as succeeded inside the transaction of its complete_tx block. Guarded like finish_runs; no row back means that
-- the run no longer owns its job, and the block is rolled back.
-- Waits for a lock on the row (a caller's request_cancel) instead of skipping it; but for hooks, it is the last statement of the block.
-- marked: by mark_transaction, so this is the transaction in which the block has begun.
update akadze.jobs j
set state = 'succeeded', finished_at = clock_timestamp(), worker_id = null
where j.id = cast(:id as bigint) and j.state = 'running' and j.worker_id = cast(:worker as uuid)
  and j.run_count = cast(:run as integer)
returning j.id, coalesce(current_setting('akadze.block', true), '') = 'open' as marked

-- name: owned_runs
-- Which of these runs are still this worker's? Reads only.
select j.id, j.run_count
from unnest(cast(:ids as bigint[]), cast(:runs as integer[])) as r(id, run)
join akadze.jobs j on j.id = r.id
where j.state = 'running' and j.worker_id = cast(:worker as uuid) and j.run_count = r.run

-- name: runs_of_worker
-- What the table says that this worker runs. A claim whose answer was lost shows here, and is handed back. Reads only; the index
-- of running jobs holds as many rows as there are slots in the cluster.
select j.id, j.run_count
from akadze.jobs j
where j.state = 'running' and j.worker_id = cast(:worker as uuid)

-- name: refuse_claims
-- Puts jobs back whose on_transition hook refused the claim that this same transaction made: as if they had not been claimed, but
-- not before :delay seconds, so that they do not stand at the head of the line at once. Nobody else has seen them running.
-- unmarked: their starts do not count for the rate of their keys either, else a job that is refused again and again would use up
-- what the others may start. A mark has the time of its start; the claim's locks on the limits rows are still held.
with refused as (
  update akadze.jobs j
  set state = 'queued', run_count = j.run_count - 1, worker_id = null, run_at = now() + make_interval(secs => cast(:delay as double precision))
  where j.id = any (cast(:ids as bigint[])) and j.state = 'running' and j.worker_id = cast(:worker as uuid)
  returning j.id, j.limit_key, j.started_at
), start as materialized (
  select r.limit_key, r.started_at, count(*) as refused
  from refused r
  where r.limit_key is not null
  group by r.limit_key, r.started_at
), unmarked as (
  delete from akadze.limit_starts s
  where s.ctid = any (array(
    select m.ctid
    from start t
    cross join lateral (
      select o.ctid from akadze.limit_starts o where o.key = t.limit_key and o.started_at = t.started_at limit t.refused
    ) m))
)
select r.id
from refused r
