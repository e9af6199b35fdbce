-- Workers and their heartbeats. Each worker writes only its own row.

-- name: insert_worker
-- At start, and again if somebody deleted the row.
insert into akadze.workers (id, hostname, pid, queues, heartbeat_ttl)
values (cast(:id as uuid), cast(:hostname as text), cast(:pid as integer), cast(:queues as text[]),
  make_interval(secs => cast(:ttl as double precision)))
on conflict (id) do update set heartbeat_at = now()
returning cast(id as text) as id

-- name: beat
-- now() is the start of this transaction: not later than the moment at which rescuers stop counting on this worker.
update akadze.workers w
set heartbeat_at = now()
where w.id = cast(:id as uuid)
returning cast(w.id as text) as id

-- name: find_worker
-- Whether the worker's row is there: a failover may have lost it. What is claimed without it is taken back as a lost worker's. Reads only.
select exists (select from akadze.workers w where w.id = cast(:id as uuid)) as found

-- name: set_sleeping
-- Enqueue notifies only while some worker of the queue sleeps. After setting it a worker claims once more before it sleeps: a job
-- that was committed without a notification before this is found then.
update akadze.workers w
set sleeping = cast(:sleeping as boolean)
where w.id = cast(:id as uuid)
returning cast(w.id as text) as id

-- name: delete_worker
-- At a clean stop, after the worker's jobs have been handed back.
delete from akadze.workers w where w.id = cast(:id as uuid)

-- name: list_workers
-- Reads only. Instants come as ISO text, which no setting of the caller's session changes.
select cast(w.id as text) as id, w.hostname, w.pid, w.queues, to_json(w.started_at) #>> '{}' as started_at,
  to_json(w.heartbeat_at) #>> '{}' as heartbeat_at
from akadze.workers w
order by w.heartbeat_at desc, w.id
