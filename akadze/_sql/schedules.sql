-- Fires of schedules. The statements of one fire are one transaction under READ COMMITTED, in the order in which they stand here.

-- name: read_clock
-- The instant that decides what is due: the database's, so that workers whose own clocks differ agree. Reads only.
-- As a number, which no setting of the session changes.
select cast(extract(epoch from clock_timestamp()) * 1000000 as bigint) as microseconds

-- name: lock_task
-- Only one transaction at a time fires a task. A statement of its own, so that fire_slot has a snapshot from after the lock and
-- sees what the last holder committed. Never waits: who holds it is deciding about the same task, and this worker looks
-- again a moment later. Ends with the transaction, so it works behind a pooler.
-- ends_idle: a worker whose machine is cut off here would keep the lock until the server gives its connection up, which may take
-- hours; with this it takes a minute, which a hook that waits for something else has, too. A setting of the session's own stays.
select pg_try_advisory_xact_lock(hashtextextended('akadze.periodic_runs ' || cast(:task as text), 0)) as locked,
  set_config(
    'idle_in_transaction_session_timeout',
    coalesce(nullif(current_setting('idle_in_transaction_session_timeout'), '0'), '60s'),
    true
  ) as ends_idle

-- name: fire_slot
-- One slot: the job and the mark that the slot is done, or neither. The lock of lock_task keeps others out; should a worker
-- come without it, the primary key of periodic_runs refuses the second mark, and its job goes with it.
-- done: the slot has its job already. held: overlap is false and the job of an earlier slot is queued or running; of the task's
-- newest 100 slots, since a job that is older than those is no previous one. Always one row back.
-- woken: as in enqueue.sql; a slot is never in the future.
with slot as materialized (
  select exists (
      select from akadze.periodic_runs p where p.task = cast(:task as text) and p.slot = cast(:slot as timestamptz)
    ) as done,
    not cast(:overlap as boolean) and exists (
      select
      from (
        select p.job_id
        from akadze.periodic_runs p
        where p.task = cast(:task as text)
        order by p.slot desc
        limit 100
      ) previous
      join akadze.jobs j on j.id = previous.job_id
      where j.state in ('queued', 'running')
    ) as held
), added as (
  insert into akadze.jobs (task, queue, max_attempts, run_at)
  select cast(:task as text), cast(:queue as text), cast(:max_attempts as integer), cast(:slot as timestamptz)
  from slot s
  where not s.done and not s.held
  returning id, task, queue, run_at
), marked as (
  insert into akadze.periodic_runs (task, slot, job_id)
  select a.task, a.run_at, a.id
  from added a
)
select s.done, s.held, a.id,
  case when a.id is not null and exists (
    select from akadze.workers w where w.sleeping and a.queue = any (w.queues) and w.heartbeat_at > now() - w.heartbeat_ttl
  ) then cast(pg_notify('akadze', a.queue) as text) end as woken
from slot s
left join added a on true

-- name: delete_old_periodic_runs
-- Marks of slots older than the retention, at most 1000 of each task; those of tasks that this app has no schedule for only
-- after much longer, since the app that has one may look further back. Goes from task to task and along each one's slots by the
-- primary key, so the young marks are not read. A mark whose job is still queued or running stays: it holds fires back.
-- skip locked: workers that clean at once share the rows, and nobody waits. Nothing else locks or updates them.
with recursive tasks as (
  (select p.task from akadze.periodic_runs p order by p.task limit 1)
  union all
  select (select p.task from akadze.periodic_runs p where p.task > t.task order by p.task limit 1)
  from tasks t
  where t.task is not null
), old as materialized (
  select o.task, o.slot
  from tasks t
  cross join lateral (
    select p.task, p.slot
    from akadze.periodic_runs p
    where p.task = t.task
      and p.slot < now() - case
        when t.task = any (cast(:scheduled as text[])) then cast(:retention as interval)
        else cast(:of_others as interval)
      end
      and not exists (select from akadze.jobs j where j.id = p.job_id and j.state in ('queued', 'running'))
    order by p.slot
    limit 1000
  ) o
  where t.task is not null
), free as materialized (
  select p.task, p.slot
  from akadze.periodic_runs p
  join old o on o.task = p.task and o.slot = p.slot
  for update of p skip locked
), gone as (
  delete from akadze.periodic_runs p
  using free f
  where p.task = f.task and p.slot = f.slot
  returning 1
)
select count(*) as deleted from gone
