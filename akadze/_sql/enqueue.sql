-- How jobs come in, on the caller's connection, in the caller's transaction.
-- JSON is cast twice: a caller's connection may have an encoder of its own for jsonb, and this is text already.

-- name: insert_job
-- One job without a unique_key, so nothing can stand against it.
-- woken: one notification, only when a worker of the queue sleeps and the job is due; unconditional it halves what eight connections
-- can enqueue, since notifying transactions share a lock at commit.
insert into akadze.jobs (task, queue, priority, args, meta, max_attempts, run_at, expires_at, limit_key)
values (cast(:task as text), cast(:queue as text), cast(:priority as smallint), cast(cast(:args as text) as jsonb), cast(cast(:meta as text) as jsonb),
  cast(:max_attempts as integer),
  coalesce(cast(:run_at as timestamptz), now() + make_interval(secs => cast(:delay as double precision)), now()),
  cast(:expires_at as timestamptz), cast(:limit_key as text))
returning id,
  case when run_at <= now() and exists (
    select from akadze.workers w where w.sleeping and jobs.queue = any (w.queues) and w.heartbeat_at > now() - w.heartbeat_ttl
  ) then cast(pg_notify('akadze', queue) as text) end as woken

-- name: insert_unique_job
-- One job with a unique_key. Always one row back: id is null when the key is taken; that is no error, so the caller's transaction
-- stays usable.
-- ended: a queued holder of the key that is dead (expired or asked to cancel) is cancelled here and its key taken in the same
-- statement: the insert's conflict check sees the rows as they are, the changes of this statement included, if the update ran
-- before. A CTE promises no order, so the insert reads from ended: it cannot start before that is complete.
-- A live holder is not touched. Two enqueues of one key: the second waits for the first's transaction, as a unique key means.
-- woken: as in insert_job.
with ended as (
  update akadze.jobs h
  set state = 'cancelled', finished_at = clock_timestamp(), expired = h.cancel_requested_at is null
  where h.unique_key = cast(:unique_key as text) and h.state = 'queued'
    and least(h.expires_at, h.cancel_requested_at) <= statement_timestamp()
  returning h.id
), added as (
  insert into akadze.jobs (task, queue, priority, args, meta, max_attempts, run_at, expires_at, unique_key, limit_key)
  select cast(:task as text), cast(:queue as text), cast(:priority as smallint), cast(cast(:args as text) as jsonb), cast(cast(:meta as text) as jsonb),
    cast(:max_attempts as integer),
    coalesce(cast(:run_at as timestamptz), now() + make_interval(secs => cast(:delay as double precision)), now()),
    cast(:expires_at as timestamptz), cast(:unique_key as text), cast(:limit_key as text)
  where (select count(*) from ended) >= 0
  on conflict (unique_key) where unique_key is not null and state in ('queued', 'running') do nothing
  returning id, queue, run_at
)
select a.id, (select e.id from ended e) as ended_id,
  case when a.run_at <= now() and exists (
    select from akadze.workers w where w.sleeping and a.queue = any (w.queues) and w.heartbeat_at > now() - w.heartbeat_ttl
  ) then cast(pg_notify('akadze', a.queue) as text) end as woken
from (select) as always
left join added a on true

-- name: insert_jobs
-- Many jobs of one task with shared options. :items is one JSON array of argument objects; the ids follow its order, because the
-- insert reads the elements in order. One statement, so all or nothing even in autocommit. One notification for all.
with added as (
  insert into akadze.jobs (task, queue, priority, args, meta, max_attempts, run_at, expires_at, limit_key)
  select cast(:task as text), cast(:queue as text), cast(:priority as smallint), i.args, cast(cast(:meta as text) as jsonb),
    cast(:max_attempts as integer),
    coalesce(cast(:run_at as timestamptz), now() + make_interval(secs => cast(:delay as double precision)), now()),
    cast(:expires_at as timestamptz), cast(:limit_key as text)
  from jsonb_array_elements(cast(cast(:items as text) as jsonb)) with ordinality as i(args, place)
  order by i.place
  returning id, run_at
)
select case when cast(:ids as boolean) then array_agg(a.id order by a.id) end as ids,
  case when min(a.run_at) <= now() and exists (
    select from akadze.workers w
    where w.sleeping and cast(:queue as text) = any (w.queues) and w.heartbeat_at > now() - w.heartbeat_ttl
  ) then cast(pg_notify('akadze', cast(:queue as text)) as text) end as woken
from added a

-- name: copy_jobs
-- The same rows as insert_jobs, in the same order, for a connection that can copy: the server spends half the time on a row. One
-- statement, so all or nothing even in autocommit. wake_queue follows it.
copy akadze.jobs (task, queue, priority, max_attempts, expires_at, limit_key, meta, args) from stdin

-- name: copy_simple_jobs
-- The same for jobs that have neither an expiry nor a limit_key nor meta: columns that are left out cost the server nothing.
copy akadze.jobs (task, queue, priority, max_attempts, args) from stdin
