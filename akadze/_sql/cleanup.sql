-- Retention, in small batches, each its own short transaction. Nothing here waits for a lock.

-- name: delete_old_jobs
-- Deletes finished jobs older than the retention by a walk along the primary key, so that no index on finished_at is needed:
-- finished_at >= created_at and ids grow with created_at, so the walk ends at the first row that is too young and starts again
-- later. :after is last_id of the step before while more, else 0. skip locked: workers that clean at once share the rows.
with step as materialized (
  select j.id, j.state, j.finished_at, j.created_at
  from akadze.jobs j
  where j.id > cast(:after as bigint)
  order by j.id
  limit 1000
), old as materialized (
  select j.id
  from akadze.jobs j
  where j.id = any (array(
      select s.id from step s
      where s.state in ('succeeded', 'failed', 'cancelled')
        and s.finished_at < now() - make_interval(secs => cast(:retention as double precision))))
    and j.state in ('succeeded', 'failed', 'cancelled')
    and j.finished_at < now() - make_interval(secs => cast(:retention as double precision))
  for update skip locked
), gone as (
  delete from akadze.jobs j where j.id = any (array(select o.id from old o)) returning j.id
)
select (select count(*) from gone) as deleted, max(s.id) as last_id,
  coalesce(count(*) = 1000 and min(s.created_at) < now() - make_interval(secs => cast(:retention as double precision)), false) as more
from step s

-- name: delete_dead_workers
-- Rows of workers that stopped beating long ago and own nothing any more: rescue has taken their jobs.
delete from akadze.workers w
where w.heartbeat_at < now() - w.heartbeat_ttl - interval '1 minute'
  and not exists (select from akadze.jobs j where j.state = 'running' and j.worker_id = w.id)
returning cast(w.id as text) as id

-- name: delete_old_starts
-- Start marks of keys that have no rate any more, or that have left their window. The claim deletes those of the keys it uses.
delete from akadze.limit_starts s
where s.ctid = any (array(
  select o.ctid
  from akadze.limit_starts o
  left join akadze.limits m on m.key = o.key
  where m.max_starts is null or o.started_at < now() - m."window" - interval '1 minute'
  limit 1000
  for update of o skip locked))
