-- How queued jobs become running. claim_plain is the whole claim while no limit and no unknown task stands in the line
-- (survey tells); else one of choose.sql, then take_chosen, in one transaction, which step over such jobs without reading them.
-- The columns of both answers are the same, in the same order: ClaimedRow in _claimed.py.

-- name: claim_plain
-- Claims up to :slots jobs for each of :queues, best first: priority, run_at, id.
-- Safe: rows are locked as they are read and locked ones are skipped, so two claims never take one job; a row that was changed
-- meanwhile is checked again (read committed). A key that has a limits row is left alone here, whatever the caller believes.
-- :fair: a queue with a key in its line is left to choose_fair. Jobs without key are one group, so alone they are in fair order here.
-- Levels are the priorities of a queue. Between two known levels (known_*: with the place behind which to read, run_at and id) one
-- probe looks for a new level; no known levels is the full look. The known place spares the dead index entries in front of it.
-- Rows are updated by the place where they were locked, without a second look into an index. A row that was changed between the
-- snapshot and the lock has a newer version that this statement does not see: it is left for the next claim.
-- Time is that of the statement: hooks of outcomes may have run for long in this transaction.
-- The aggregate and "offset 0" keep the lateral queries whole: flattened, they would be run, and would lock, once per use.
with recursive known as materialized (
  select k.queue, k.priority, k.run_at, k.id
  from unnest(cast(:known_queues as text[]), cast(:known_priorities as smallint[]), cast(:known_run_ats as timestamptz[]), cast(:known_ids as bigint[]))
    as k(queue, priority, run_at, id)
), level as (
  select q.queue collate "C" as queue, 32768 as priority, cast('{}' as tid[]) as places, q.slots as room
  from unnest(cast(:queues as text[]), cast(:slots as integer[])) as q(queue, slots)
  where not exists (select from akadze.queue_pauses p where p.queue = q.queue)
    and not (cast(:fair as boolean) and exists (select from akadze.jobs k where k.state = 'queued' and k.limit_key is not null and k.queue = q.queue))
  union all
  select l.queue, step.priority, line.places, l.room - cardinality(line.places)
  from level l
  cross join lateral (
    select max(k.priority) as priority from known k where k.queue = l.queue and k.priority < l.priority
  ) below
  cross join lateral (
    select cast(coalesce((
      select j.priority from akadze.jobs j
      where j.state = 'queued' and j.queue = l.queue and j.priority < l.priority and j.priority > coalesce(below.priority, -32769)
      order by j.priority desc limit 1
    ), below.priority) as integer) as priority
    offset 0
  ) step
  cross join lateral (
    select coalesce(array_agg(b.place), cast('{}' as tid[])) as places
    from (
      select j.ctid as place from akadze.jobs j
      where j.state = 'queued' and j.queue = l.queue and j.priority = step.priority and j.run_at <= statement_timestamp()
        and (j.run_at, j.id) > (
          coalesce((select k.run_at from known k where k.queue = l.queue and k.priority = step.priority), '-infinity'),
          coalesce((select k.id from known k where k.queue = l.queue and k.priority = step.priority), 0))
        and j.task = any (cast(:tasks as text[]))
        and (least(j.expires_at, j.cancel_requested_at) > statement_timestamp()) is not false
        and (j.limit_key is null or not exists (select from akadze.limits m where m.key = j.limit_key))
      order by j.run_at, j.id
      limit l.room
      for update skip locked
    ) b
  ) line
  where l.room > 0 and step.priority is not null
), claimed as (
  update akadze.jobs j
  set state = 'running', run_count = j.run_count + 1, worker_id = cast(:worker as uuid), started_at = statement_timestamp()
  where j.ctid = any (array(select unnest(l.places) from level l))
  returning j.id, j.task, j.queue, j.priority, j.args, j.meta, j.run_count, j.attempt, j.max_attempts, j.snoozes, j.run_at,
    j.expires_at, j.unique_key, j.limit_key, j.cancel_requested_at, j.errors, j.started_at
)
select c.id, c.task, c.queue, c.priority, cast(c.args as text) as args, cast(c.meta as text) as meta, c.run_count, c.attempt,
  c.max_attempts, c.snoozes, c.run_at, c.expires_at, c.unique_key, c.limit_key, c.cancel_requested_at,
  cast(c.errors as text) as errors, c.started_at
from claimed c
order by c.priority desc, c.run_at, c.id

-- name: take_chosen
-- The last statement of a claim with limits or fair: starts the best of the jobs that choose_* left in akadze.chosen.
-- A limit is exact because (1) the limits rows of the keys are locked since choose_*, so nobody else counts or starts jobs of
-- these keys, and (2) this is a new statement under read committed: its snapshot is younger than the locks and sees all that
-- earlier holders did. A key whose limits row choose_* did not lock (set_limit came in between) starts nothing this time.
-- moment: one clock for counting, marking and expiry. now() is the time of BEGIN, before the wait for the locks: a mark with it
-- would leave the window too early. Whatever may have changed while choose_* waited is looked at again: a cancel request, expiry,
-- a pause, and run_at, since another worker may have run the job meanwhile and put it back for later. Rows are updated by the place
-- where they were locked, as in claim_plain.
-- Each job is found by its id: nothing that says queued may be a plain condition where jobs are read, or the planner may read the
-- index of the whole line, if few were queued at the last analyse (100 ms per claim with 100 000 jobs); and one by one, or a plan
-- that was made while the table was empty reads all ids.
with moment as materialized (
  select clock_timestamp() as at
), chosen as materialized (
  select j.id, j.queue, j.limit_key, c.place
  from unnest(cast(current_setting('akadze.chosen', true) as bigint[])) with ordinality as c(id, place)
  cross join lateral (
    select k.id, k.queue, k.limit_key from akadze.jobs k where k.id = c.id and k.state || '' = 'queued' offset 0
  ) j
), key as materialized (
  select m.key, m.max_starts is not null as counts_starts, t.at - m."window" as since,
    case when m.key = any (cast(current_setting('akadze.locked', true) as text[])) then least(
      m.max_running - (select count(*) from akadze.jobs r where r.state = 'running' and r.limit_key = m.key),
      m.max_starts - (select count(*) from akadze.limit_starts s where s.key = m.key and s.started_at > t.at - m."window"))
    else 0 end as room
  from akadze.limits m
  cross join moment t
  where m.key = any (array(select c.limit_key from chosen c where c.limit_key is not null))
), admitted as materialized (
  select c.id, c.queue, c.place
  from (select d.*, row_number() over (partition by d.limit_key order by d.place) as turn from chosen d) c
  left join key k on k.key = c.limit_key
  where k.key is null or k.room is null or c.turn <= k.room
), taken as materialized (
  select x.tid
  from unnest(cast(:queues as text[]), cast(:slots as integer[])) as q(queue, slots)
  cross join lateral (
    select y.tid
    from (select a.id from admitted a where a.queue = q.queue order by a.place) o
    cross join lateral (
      select j.ctid as tid
      from akadze.jobs j
      where j.id = o.id and j.state || '' = 'queued' and j.run_at <= (select t.at from moment t) and j.cancel_requested_at is null
        and (j.expires_at > (select t.at from moment t)) is not false
      for update of j skip locked
    ) y
    limit q.slots
  ) x
  where not exists (select from akadze.queue_pauses p where p.queue = q.queue)
), claimed as (
  update akadze.jobs j
  set state = 'running', run_count = j.run_count + 1, worker_id = cast(:worker as uuid), started_at = (select t.at from moment t)
  where j.ctid = any (array(select t.tid from taken t))
  returning j.id, j.task, j.queue, j.priority, j.args, j.meta, j.run_count, j.attempt, j.max_attempts, j.snoozes, j.run_at,
    j.expires_at, j.unique_key, j.limit_key, j.cancel_requested_at, j.errors, j.started_at
), marked as (
  insert into akadze.limit_starts (key, started_at)
  select k.key, c.started_at from claimed c join key k on k.key = c.limit_key where k.counts_starts
), forgotten as (
  delete from akadze.limit_starts s using key k
  where s.key = k.key and k.counts_starts and s.started_at <= k.since and k.key = any (cast(current_setting('akadze.locked', true) as text[]))
)
select c.id, c.task, c.queue, c.priority, cast(c.args as text) as args, cast(c.meta as text) as meta, c.run_count, c.attempt,
  c.max_attempts, c.snoozes, c.run_at, c.expires_at, c.unique_key, c.limit_key, c.cancel_requested_at,
  cast(c.errors as text) as errors, c.started_at
from claimed c
join chosen o on o.id = c.id
order by o.place

-- name: survey
-- Looks ahead, once a second: which claim is needed, whether anything can be claimed or has to be ended, and when to look next.
-- Reads only; being out of date costs speed for a second, never a limit.
-- unknown: a task that this worker does not know stands in the line (one probe for each task and level, jobs without key).
-- keyed: the line holds a job with a key. due: something may be claimable now. doomed: a queued job was asked to cancel or has expired.
-- The queue of a doomed job is no plain condition, and there is an order: else a planner without statistics, or with those of an empty
-- table, reads the whole line for it (65 ms with 300 000 jobs) and not the index that holds the few that may be doomed.
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
)
select exists (select from akadze.limits) as limited,
  exists (
    select from akadze.jobs j where j.state = 'queued' and j.limit_key is not null and j.queue = any (cast(:queues as text[]))
  ) as keyed,
  exists (
    select from level l
    cross join lateral (
      select from akadze.jobs j
      where j.state = 'queued' and j.queue = l.queue and j.priority = l.priority and j.run_at <= now()
      limit 1
    ) x
  ) as due,
  exists (
    select from (
      select from akadze.jobs j
      where j.state = 'queued' and j.queue || '' = any (cast(:queues as text[]))
        and (j.expires_at is not null or j.cancel_requested_at is not null)
        and least(j.expires_at, j.cancel_requested_at) <= now()
      order by least(j.expires_at, j.cancel_requested_at) limit 1
    ) x
  ) as doomed,
  exists (select from lane n where n.task <> '' and n.task <> all (cast(:tasks as text[]))) as unknown,
  (select cast(extract(epoch from min(x.run_at) - now()) as double precision) from level l cross join lateral (
    select j.run_at from akadze.jobs j
    where j.state = 'queued' and j.queue = l.queue and j.priority = l.priority and j.run_at > now()
    order by j.run_at limit 1) x) as next_in
