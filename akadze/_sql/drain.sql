-- How drain claims: one job at a time, on any connection, in the transaction that it is given. Time is that of the statement, so
-- that a long transaction of a test sees the jobs that have become ready since it began.

-- name: lock_limits
-- All limits rows, in key order: the lock order everywhere. claim_ready then counts in a fresh snapshot.
select m.key from akadze.limits m order by m.key for update

-- name: claim_ready
-- Starts the best job that limits allow. Safe beside workers: skip locked, and the limits rows are locked by lock_limits.
-- The columns are those of ClaimedRow, instants as ISO text. put_off: jobs that this drain has run and that asked for a delay; a slow
-- drain must not run them again because the delay has passed meanwhile.
with best as materialized (
  select j.id
  from akadze.jobs j
  where j.state = 'queued' and j.run_at <= statement_timestamp() and j.task = any (cast(:tasks as text[]))
    and j.id <> all (cast(:put_off as bigint[]))
    and (least(j.expires_at, j.cancel_requested_at) > statement_timestamp()) is not false
    and not exists (select from akadze.queue_pauses p where p.queue = j.queue)
    and not exists (
      select from akadze.limits m
      where m.key = j.limit_key and (
        (select count(*) from akadze.jobs r where r.state = 'running' and r.limit_key = m.key) >= m.max_running
        or (
          select count(*) from akadze.limit_starts s
          where s.key = m.key and s.started_at > clock_timestamp() - m."window") >= m.max_starts))
  order by j.priority desc, j.run_at, j.id
  limit 1
  for update of j skip locked
), claimed as (
  update akadze.jobs j
  set state = 'running', run_count = j.run_count + 1, worker_id = cast(:worker as uuid), started_at = clock_timestamp()
  where j.id = (select b.id from best b)
  returning j.id, j.task, j.queue, j.priority, j.args, j.meta, j.run_count, j.attempt, j.max_attempts, j.snoozes, j.run_at,
    j.expires_at, j.unique_key, j.limit_key, j.cancel_requested_at, j.errors, j.started_at
), marked as (
  insert into akadze.limit_starts (key, started_at)
  select m.key, c.started_at from claimed c join akadze.limits m on m.key = c.limit_key where m.max_starts is not null
)
select c.id, c.task, c.queue, c.priority, cast(c.args as text) as args, cast(c.meta as text) as meta, c.run_count, c.attempt,
  c.max_attempts, c.snoozes, to_json(c.run_at) #>> '{}' as run_at, to_json(c.expires_at) #>> '{}' as expires_at,
  c.unique_key, c.limit_key, to_json(c.cancel_requested_at) #>> '{}' as cancel_requested_at, cast(c.errors as text) as errors,
  to_json(c.started_at) #>> '{}' as started_at
from claimed c

-- name: find_ready
-- A job that is ready whatever its limits say: one whose task is not registered first, one that its limit never lets start (closed)
-- last. Reads only.
select j.task, j.task = any (cast(:tasks as text[])) as known, m.key is not null as limited,
  (least(m.max_running, m.max_starts) = 0) is true as closed
from akadze.jobs j
left join akadze.limits m on m.key = j.limit_key
where j.state = 'queued' and j.run_at <= statement_timestamp() and j.id <> all (cast(:put_off as bigint[]))
  and not exists (select from akadze.queue_pauses p where p.queue = j.queue)
order by j.task = any (cast(:tasks as text[])), closed, j.id
limit 1

-- name: find_runs
-- The run that a drain has not ended, none or one. Reads only; whoever writes its outcome checks that it is still the drain's.
select j.id, j.run_count from akadze.jobs j where j.state = 'running' and j.worker_id = cast(:worker as uuid)
