-- What `akadze demo` reads from the tables to show and to check. All of it reads committed rows and waits for nobody;
-- only the last three write. :tasks are the names of the demo's tasks, :first the first job id that can be its own.

-- name: find_others
-- Whether a shop is there already, and whether the table of jobs is; read before anything is made.
select to_regnamespace('shop') is not null as shop, to_regclass('akadze.jobs') is not null as jobs,
  current_database() as database, current_setting('server_version') as version

-- name: count_others
-- Jobs in the table, and those of tasks that the demo's workers would take.
select count(*) as jobs,
  count(*) filter (where j.task = any (cast(:tasks as text[])) and j.state in ('queued', 'running')) as taken,
  coalesce(max(j.id), 0) + 1 as first
from akadze.jobs j

-- name: count_by_task
-- Waiting are the jobs whose turn has come, later those planned for a time to come: retries and delays.
select j.task,
  count(*) as jobs,
  count(*) filter (where j.state = 'queued' and j.run_at <= now()) as waiting,
  count(*) filter (where j.state = 'queued' and j.run_at > now() and j.attempt > 0) as retrying,
  count(*) filter (where j.state = 'queued' and j.run_at > now() and j.attempt = 0) as planned,
  count(*) filter (where j.state = 'running') as running,
  count(*) filter (where j.state = 'succeeded') as succeeded,
  count(*) filter (where j.state = 'failed') as failed,
  count(*) filter (where j.state = 'cancelled') as cancelled
from akadze.jobs j
where j.task = any (cast(:tasks as text[])) and j.id >= cast(:first as bigint)
group by j.task

-- name: list_telling_jobs
-- The jobs worth a line: those with errors or another end than success, and the first of each task.
select j.id, j.task, j.state, j.run_count, j.attempt, j.max_attempts, j.limit_key,
  j.errors #>> '{-1,error}' as error, cast(j.result as text) as result
from akadze.jobs j
join (
  select f.task, min(f.id) as id from akadze.jobs f
  where f.task = any (cast(:tasks as text[])) and f.id >= cast(:first as bigint)
  group by f.task
) f on f.task = j.task
where j.id >= cast(:first as bigint)
  and (j.id = f.id or j.state in ('failed', 'cancelled') or j.errors <> '[]')
order by j.id

-- name: find_running
-- The worker that runs a job of this task now, and the job's number of starts.
select j.id, j.run_count, w.pid
from akadze.jobs j
join akadze.workers w on w.id = j.worker_id
where j.state = 'running' and j.task = cast(:task as text) and j.id >= cast(:first as bigint)

-- name: count_working
-- Workers of the demo that have registered.
select count(*) as workers from akadze.workers w where w.pid = any (cast(:pids as integer[]))

-- name: count_meta
-- All jobs, whatever their state, that carry this metadata.
select count(*) as jobs, count(*) filter (where j.state = 'cancelled' and j.run_count = 0) as never_ran
from akadze.jobs j
where j.task = any (cast(:tasks as text[])) and j.id >= cast(:first as bigint) and j.meta @> cast(:meta as jsonb)

-- name: count_ends
-- How the jobs of one task ended: with these many runs, attempts spent, and last error.
select j.state, j.run_count, j.attempt, j.errors #>> '{-1,error}' as error, count(*) as jobs
from akadze.jobs j
where j.task = cast(:task as text) and j.id >= cast(:first as bigint)
group by 1, 2, 3, 4
order by 1, 2, 3, 4

-- name: measure_limit
-- The most jobs of a key that ran at one time, and the most that started within a window. The rows themselves are the proof,
-- as each of these jobs ran once: it started at a moment taken under the limit's lock, and ran until it finished.
select count(*) as jobs, max(j.run_count) as runs,
  max((select count(*) from akadze.jobs o
    where o.limit_key = j.limit_key and o.id >= cast(:first as bigint)
      and o.started_at <= j.started_at and o.finished_at > j.started_at)) as at_once,
  max((select count(*) from akadze.jobs o
    where o.limit_key = j.limit_key and o.id >= cast(:first as bigint)
      and o.started_at <= j.started_at and o.started_at > j.started_at - cast(:window as interval))) as in_window
from akadze.jobs j
where j.limit_key = cast(:key as text) and j.id >= cast(:first as bigint)

-- name: measure_fairness
-- How many jobs of the large tenant were still to start when the last one of the small tenant did.
select count(*) as waiting
from akadze.jobs j
where j.limit_key = cast(:large as text) and j.id >= cast(:first as bigint)
  and j.started_at > (
    select max(s.started_at) from akadze.jobs s where s.limit_key = cast(:small as text) and s.id >= cast(:first as bigint))

-- name: measure_schedule
-- The jobs of a schedule, and the instants they are for.
select count(*) as jobs, count(distinct j.run_at) as instants
from akadze.jobs j
where j.task = cast(:task as text) and j.id >= cast(:first as bigint) and j.attempt = 0

-- name: count_open
-- Jobs that could run now and have not ended.
select count(*) as jobs from akadze.jobs j
where j.task = any (cast(:tasks as text[])) and j.id >= cast(:first as bigint)
  and (j.state = 'running' or j.state = 'queued' and (j.run_at <= now() or j.attempt > 0))

-- name: delete_jobs
-- What the demo put into a database that is not its own; its workers have stopped.
delete from akadze.jobs j where j.task = any (cast(:tasks as text[])) and j.id >= cast(:first as bigint)

-- name: delete_fires
-- Marks of the demo's schedule.
delete from akadze.periodic_runs p where p.task = any (cast(:tasks as text[]))

-- name: delete_shop
-- The schema that the demo made, having found none of that name.
drop schema if exists shop cascade
