-- What the database says at the end, in the order in which the checks take it. All read.

-- name: jobs
select j.id, j.task, j.queue, j.state, j.run_count, j.attempt, j.max_attempts, j.snoozes, j.args ->> 'token' as token, j.limit_key,
  j.unique_key, j.cancel_requested_at is not null as cancel, extract(epoch from j.expires_at)::float8 as expires_at, j.errors
from akadze.jobs j
order by j.id

-- name: changes
select c.seq, c.job_id, extract(epoch from c.at)::float8 as at, c.old_state, c.new_state, c.run_count, c.attempt, c.snoozes,
  c.old_worker::text as old_worker, c.new_worker::text as new_worker, c.limit_key, extract(epoch from c.run_at)::float8 as run_at,
  extract(epoch from c.started_at)::float8 as started_at, coalesce(c.cancel, false) as cancel, coalesce(c.lost, false) as lost
from public.changes c
order by c.at, c.seq

-- name: beats
select b.worker::text as worker, extract(epoch from b.at)::float8 as at, extract(epoch from b.ttl)::float8 as ttl, b.pid, b.gone
from public.beats b
order by b.at

-- name: policies
select p.key, extract(epoch from p.at)::float8 as at, p.max_running, p.max_starts, p.seconds
from public.policies p
order by p.at

-- name: fires
select p.task, extract(epoch from p.slot)::float8 as slot, p.job_id
from akadze.periodic_runs p
order by p.task, p.slot

-- name: effects
select e.job_id, e.run
from public.effects e

-- name: unfinished
select count(*) as count
from akadze.jobs j
where j.state in ('queued', 'running')
