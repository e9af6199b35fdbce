-- Queues: counts and pauses.

-- name: count_jobs
-- Reads only. One pass over the primary key, which holds queue and state: with a million finished jobs 150 to 200 ms and 5,000
-- pages, where the table has 32,000, or 167,000 if arguments and results have 0.5 KB each (there a pass over it took 600 ms on
-- the same machine). Pages that vacuum has not yet seen are looked up in the table.
select j.queue, j.state, count(*) as jobs
from akadze.jobs j
group by j.queue, j.state
order by j.queue, j.state

-- name: measure_lag
-- How long the oldest ready job has waited: one that a claim could take now. Reads only, along the index of queued jobs.
select extract(epoch from now() - min(j.run_at)) as lag
from akadze.jobs j
where j.state = 'queued' and j.run_at <= now() and (least(j.expires_at, j.cancel_requested_at) > now()) is not false
  and not exists (select from akadze.queue_pauses p where p.queue = j.queue)

-- name: pause_queue
-- Idempotent, also for two at once. Claims look at this row in their own snapshot.
insert into akadze.queue_pauses (queue) values (cast(:queue as text)) on conflict (queue) do nothing

-- name: resume_queue
-- Idempotent.
delete from akadze.queue_pauses p where p.queue = cast(:queue as text)

-- name: wake_queue
-- Tells sleeping workers of the queue, at commit, that there may be something to claim: one notification, and none while all are
-- awake. Reads nothing but the few rows of workers.
select cast(pg_notify('akadze', cast(:queue as text)) as text) as woken
where exists (
  select from akadze.workers w
  where w.sleeping and cast(:queue as text) = any (w.queues) and w.heartbeat_at > now() - w.heartbeat_ttl)

-- name: list_pauses
-- Reads only.
select p.queue from akadze.queue_pauses p order by p.queue

-- name: find_unknown_tasks
-- Tasks of queued jobs that are not among :tasks, with a queue of theirs. Reads only, once a minute or so, along the lanes as
-- survey does: one probe for each task and level. Jobs with a limit key have no lanes by task: a thousand of each level are read.
with recursive level as (
  select q.queue collate "C" as queue, 32768 as priority
  from unnest(cast(:queues as text[])) as q(queue)
  union all
  select l.queue, x.priority
  from level l
  cross join lateral (
    select cast(j.priority as integer) as priority from akadze.jobs j
    where j.state = 'queued' and j.queue = l.queue and j.priority < l.priority
    order by j.priority desc limit 1
  ) x
), lane as (
  select l.queue, l.priority, cast('' as text) collate "C" as task from level l where l.priority < 32768
  union all
  select n.queue, n.priority, x.task
  from lane n
  cross join lateral (
    select j.task from akadze.jobs j
    where j.state = 'queued' and j.limit_key is null and j.queue = n.queue and j.priority = n.priority and j.task > n.task
    order by j.task limit 1
  ) x
), waiting as (
  select n.queue, n.task from lane n where n.task <> ''
  union all
  select l.queue, x.task
  from level l
  cross join lateral (
    select j.task from akadze.jobs j
    where j.state = 'queued' and j.limit_key is not null and j.queue = l.queue and j.priority = l.priority
    limit 1000
  ) x
)
select w.task, min(w.queue) as queue
from waiting w
where w.task <> all (cast(:tasks as text[]))
group by w.task
order by w.task
limit 100
