-- What tests ask about the jobs that are still to come.

-- name: list_enqueued
-- Whole queued and running jobs, of one task or of all. Reads only. The columns are those of read_jobs.
select j.id, j.task, j.queue, j.priority, j.state, cast(j.args as text) as args, j.run_count, j.attempt, j.max_attempts, j.snoozes,
  j.unique_key, j.limit_key, cast(j.worker_id as text) as worker_id, cast(j.errors as text) as errors,
  cast(j.result as text) as result, to_json(j.cancel_requested_at) #>> '{}' as cancel_requested_at,
  to_json(j.expires_at) #>> '{}' as expires_at, j.expired, cast(j.meta as text) as meta
from akadze.jobs j
where j.state in ('queued', 'running') and (cast(:task as text) is null or j.task = cast(:task as text))
order by j.id

-- name: name_database
-- Where the rows are that a test would delete. Reads only.
select current_database() as name

-- name: find_leftovers
-- Whether there is anything to delete before the next test. Reads only.
select exists (select from akadze.jobs) or exists (select from akadze.workers)
  or exists (select from akadze.periodic_runs) or exists (select from akadze.queue_pauses) or exists (select from akadze.limits)
  or exists (select from akadze.limit_starts) as found

-- name: limit_waiting
-- For this transaction only: a session that a test has left open is reported, not waited for.
select set_config('lock_timeout', '5s', true)
