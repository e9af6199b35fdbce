-- Jobs: read, cancel, requeue. Instants come as ISO text, which no setting of the caller's session changes.

-- name: read_jobs
-- Whole jobs for hooks and for a running task. Reads only.
select j.id, j.task, j.queue, j.priority, j.state, cast(j.args as text) as args, j.run_count, j.attempt, j.max_attempts, j.snoozes,
  j.unique_key, j.limit_key, cast(j.worker_id as text) as worker_id, cast(j.errors as text) as errors,
  cast(j.result as text) as result, to_json(j.cancel_requested_at) #>> '{}' as cancel_requested_at,
  to_json(j.expires_at) #>> '{}' as expires_at, j.expired, cast(j.meta as text) as meta
from akadze.jobs j
where j.id = any (cast(:ids as bigint[]))
order by j.id

-- name: request_cancel
-- Marks a queued or running job, in the caller's transaction. By id only; may wait for one exchange of a worker, which waits for
-- nothing that this transaction holds (workers skip locked rows). One row back if there is such a job, whatever its state.
with marked as (
  update akadze.jobs j
  set cancel_requested_at = coalesce(j.cancel_requested_at, now())
  where j.id = cast(:id as bigint) and j.state in ('queued', 'running')
  returning j.id
)
select j.id, (select count(*) from marked) as marked
from akadze.jobs j
where j.id = cast(:id as bigint)

-- name: requeue_job
-- A failed job goes back to the queue; attempt, errors and args stay, one more attempt is allowed if none is left. Guarded by the
-- state, so two requeues make one. Its unique key may have a new holder: then nothing is changed (a holder that another open
-- transaction inserts meanwhile raises the unique violation, which the caller of this statement catches in a savepoint).
-- One row back if there is such a job, with the state it had.
with requeued as (
  update akadze.jobs j
  set state = 'queued', run_at = now(), finished_at = null, expires_at = null, expired = false, cancel_requested_at = null,
    max_attempts = greatest(j.max_attempts, least(cast(j.attempt as bigint) + 1, 2147483647))
  where j.id = cast(:id as bigint) and j.state = 'failed'
    and not exists (
      select from akadze.jobs h
      where h.unique_key = j.unique_key and h.unique_key is not null and h.state in ('queued', 'running'))
  returning j.id, j.queue
)
select j.state, (select count(*) from requeued) as requeued,
  case when exists (
    select from akadze.workers w join requeued r on r.queue = any (w.queues)
    where w.sleeping and w.heartbeat_at > now() - w.heartbeat_ttl
  ) then cast(pg_notify('akadze', j.queue) as text) end as woken
from akadze.jobs j
where j.id = cast(:id as bigint)

-- name: list_jobs
-- Summaries. Reads only. The containment test can use the index of meta; the second test makes each given pair exact.
-- The instants are made text of those that are listed only: of all that are sorted it would take most of the time.
-- The newest are read along the primary key; else the first sort key is a constant, which the planner drops.
select j.id, j.task, j.queue, j.state, j.priority, j.attempt, j.max_attempts, to_json(j.run_at) #>> '{}' as run_at,
  to_json(j.started_at) #>> '{}' as started_at, to_json(j.finished_at) #>> '{}' as finished_at, cast(j.meta as text) as meta
from (
  select j.id, j.task, j.queue, j.state, j.priority, j.attempt, j.max_attempts, j.run_at, j.started_at, j.finished_at, j.meta
  from akadze.jobs j
  where (cast(:queue as text) is null or j.queue = cast(:queue as text))
    and (cast(:state as text) is null or j.state = cast(:state as text))
    and (cast(:task as text) is null or j.task = cast(:task as text))
    and (cast(cast(:meta as text) as jsonb) = '{}' or (
      j.meta <> '{}' and j.meta @> cast(cast(:meta as text) as jsonb) and not exists (
        select from jsonb_each(cast(cast(:meta as text) as jsonb)) as given(key, value)
        where j.meta -> given.key is distinct from given.value)))
  order by case when cast(:newest as boolean) then j.id end desc, j.priority desc, j.run_at, j.id
  limit cast(:limit as integer)
) j
order by case when cast(:newest as boolean) then j.id end desc, j.priority desc, j.run_at, j.id

-- name: list_active_args
-- The arguments of a task's queued and running jobs, for assert_enqueued. Reads only.
select j.id, cast(j.args as text) as args
from akadze.jobs j
where j.task = cast(:task as text) and j.state in ('queued', 'running')
order by j.id
