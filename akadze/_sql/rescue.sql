-- Jobs that nobody looks after any more: of lost workers, and queued ones that were asked to cancel or have expired.
-- Each is a pair of statements in one short transaction: the first locks a small batch, the second writes it.

-- name: find_lost
-- Whether lock_lost_jobs would find something for this worker. Reads only, along the index of running jobs.
select exists (
  select from akadze.jobs j
  where j.state = 'running' and j.worker_id is distinct from cast(:rescuer as uuid)
    and not exists (select from akadze.workers w where w.id = j.worker_id and w.heartbeat_at > now() - w.heartbeat_ttl)) as lost

-- name: lock_lost_jobs
-- Jobs of workers whose heartbeat is over, by the database's clock and each worker's own ttl; a missing row counts as dead.
-- Independent of limits and pauses. skip locked: two rescues share the work, and a finish that holds its row wins.
-- Without order by: nothing waits here, and with one the planner may walk the primary key (140 ms for a million rows).
-- apart: jobs whose hook has just refused this, which would take the places of others.
-- rescuer: a worker leaves its own jobs alone. If it was frozen past its lease, it is about to stop and hands them back without
-- spending an attempt; if only its row is gone or the clock was set, it runs them still, and its next beat makes it alive again.
select j.id
from akadze.jobs j
where j.state = 'running' and j.id <> all (cast(:apart as bigint[]))
  and j.worker_id is distinct from cast(:rescuer as uuid)
  and not exists (select from akadze.workers w where w.id = j.worker_id and w.heartbeat_at > now() - w.heartbeat_ttl)
limit 100
for update of j skip locked

-- name: rescue_jobs
-- Takes back jobs that this transaction locked with lock_lost_jobs. Spends an attempt, fails the job on the last one; a cancel
-- request wins. Default backoff: 2^(n-1) s, at most 300 s, times a random 0.5..1.
with lost as materialized (
  select j.id, least(cast(j.attempt as bigint) + 1, 2147483647) as attempt, j.worker_id,
    case
      when j.cancel_requested_at is not null then 'cancelled'
      when cast(j.attempt as bigint) + 1 >= j.max_attempts then 'failed'
      else 'queued' end as state
  from akadze.jobs j
  where j.id = any (cast(:ids as bigint[])) and j.state = 'running'
)
update akadze.jobs j
set state = l.state,
  attempt = l.attempt,
  run_at = case when l.state = 'queued'
    then now() + make_interval(secs => least(300, power(2, least(l.attempt - 1, 20))) * (0.5 + random() / 2)) else j.run_at end,
  finished_at = case when l.state <> 'queued' then clock_timestamp() end,
  worker_id = null,
  errors = case when jsonb_array_length(j.errors) >= 10 then j.errors - 0 else j.errors end || jsonb_build_array(jsonb_build_object(
    'error', 'WorkerLost', 'message', 'worker ' || coalesce(cast(l.worker_id as text), '(none)') || ' stopped beating',
    'at', (to_jsonb(now() at time zone 'UTC') #>> '{}') || 'Z'))
from lost l
where j.id = l.id
returning j.id, j.state, cast(l.worker_id as text) as worker_id

-- name: lock_doomed_jobs
-- Queued jobs of these queues (null: of all) that were asked to cancel or have expired, also in paused queues. skip locked: several workers
-- share them, and a claim that holds one is about to leave it alone. apart: as in lock_lost_jobs.
select j.id
from akadze.jobs j
where j.state = 'queued' and (cast(:queues as text[]) is null or j.queue = any (cast(:queues as text[])))
  and (j.expires_at is not null or j.cancel_requested_at is not null)
  and least(j.expires_at, j.cancel_requested_at) <= statement_timestamp() and j.id <> all (cast(:apart as bigint[]))
order by least(j.expires_at, j.cancel_requested_at)
limit 500
for update of j skip locked

-- name: cancel_doomed
-- Ends jobs that this transaction locked with lock_doomed_jobs.
update akadze.jobs j
set state = 'cancelled', finished_at = clock_timestamp(), expired = j.cancel_requested_at is null
where j.id = any (cast(:ids as bigint[])) and j.state = 'queued'
returning j.id, j.state
