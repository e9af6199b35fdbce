-- First statements of a claim with limits or fair: begin; choose_*; finish_runs; take_chosen; commit. One round trip, read committed.
-- Both choose candidates in claim order without locking jobs, then lock the limits rows of their keys in key order (the lock
-- order everywhere: limits by key, then jobs), and leave ids and keys in transaction-local settings for take_chosen, which counts
-- again in a fresh snapshot. Being wrong here costs a slot, never a limit.
-- :lanes bounds the keys looked at per level (null: all); a bounded look starts behind :after, so that the caller can rotate.
-- last_key is the first of the keys at which a level's look was cut, so that the next look leaves out none of any level.
-- known_*: where each level's near rows began in the last answer (windows): dead index entries before them are not read again.
-- :near: rows of the line that are read beyond twice the room before the lanes are asked; any number gives the same answer. Where
-- lanes are few they are the cheaper way, where they are many the rows are.
-- :spare: candidates beyond the free slots, for rows that other workers take first. :finishing: runs that this exchange finishes,
-- not counted as running any more.
-- "offset 0" keeps a lateral query a nested loop: else the planner may count for every row of limits first.

-- name: choose_limited
-- Per level (queue, priority), highest first, until room is filled:
--   near: the first rows of the line. If they hold enough startable jobs, or are all there are, that is the exact answer.
--   far:  else the heads of the lanes: one probe for each known task (jobs without key) and one for each key; a lane without room
--         costs that probe, whatever its length. With many lanes the i-th by head gives at most 2 * room / i + 2 rows; what lies
--         behind the end of a lane that was cut there, lower levels too, is left for the next claim, so the order stays exact.
with recursive known as materialized (
  select k.queue, k.priority, k.run_at
  from unnest(cast(:known_queues as text[]), cast(:known_priorities as smallint[]), cast(:known_run_ats as timestamptz[])) as k(queue, priority, run_at)
), level as (
  select q.queue collate "C" as queue, 32768 as priority, cast('{}' as bigint[]) as ids, cast('{}' as text[]) collate "C" as keys,
    q.slots + cast(:spare as integer) as room, 0 as lanes, cast('' as text) collate "C" as last_key, cast(null as timestamptz) as near_from
  from unnest(cast(:queues as text[]), cast(:slots as integer[])) as q(queue, slots)
  where q.slots > 0 and not exists (select from akadze.queue_pauses p where p.queue = q.queue)
  union all
  select l.queue, step.priority, best.ids, l.keys || best.keys, case when best.cut then 0 else l.room - cardinality(best.ids) end, best.lanes, best.last_key, best.near_from
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
    with recursive near as materialized (
      select j.id, j.run_at, coalesce(j.limit_key, '') as key,
        j.task = any (cast(:tasks as text[])) and (least(j.expires_at, j.cancel_requested_at) > now()) is not false as fit
      from akadze.jobs j
      where j.state = 'queued' and j.queue = l.queue and j.priority = step.priority and j.run_at <= now()
        and j.run_at >= coalesce((select k.run_at from known k where k.queue = l.queue and k.priority = step.priority), '-infinity')
      order by j.run_at, j.id
      limit cast(:near as integer) + 2 * l.room
    ), near_key as materialized (
      select k.key, r.room - cardinality(array_positions(l.keys, k.key)) as room
      from (select distinct n.key from near n where n.fit) k
      left join lateral (
        select least(
          m.max_running - (
            select count(*) from akadze.jobs r
            where r.state = 'running' and r.limit_key = m.key and r.id <> all (cast(:finishing as bigint[]))),
          m.max_starts - (
            select count(*) from akadze.limit_starts s where s.key = m.key and s.started_at > now() - m."window")) as room
        from akadze.limits m where m.key = k.key
        offset 0
      ) r on true
    ), near_fit as materialized (
      select f.id, f.key, f.run_at
      from (
        select n.id, n.key, n.run_at, k.room, row_number() over (partition by n.key order by n.run_at, n.id) as place
        from near n join near_key k on k.key = n.key
        where n.fit
      ) f
      where f.place <= f.room or f.room is null
    ), deep as materialized (
      select (select count(*) from near_fit) < l.room and (select count(*) from near) >= cast(:near as integer) + 2 * l.room as needed
    ), key_lane as (
      select x.key, x.run_at, x.id, x.fit
      from (
        select j.limit_key as key, j.run_at, j.id,
          j.task = any (cast(:tasks as text[])) and (least(j.expires_at, j.cancel_requested_at) > now()) is not false as fit
        from akadze.jobs j
        where j.state = 'queued' and j.queue = l.queue and j.priority = step.priority and j.limit_key > cast(:after as text)
        order by j.limit_key, j.run_at, j.id limit 1
      ) x
      where (select d.needed from deep d)
      union all
      select x.key, x.run_at, x.id, x.fit
      from key_lane n
      cross join lateral (
        select j.limit_key as key, j.run_at, j.id,
          j.task = any (cast(:tasks as text[])) and (least(j.expires_at, j.cancel_requested_at) > now()) is not false as fit
        from akadze.jobs j
        where j.state = 'queued' and j.queue = l.queue and j.priority = step.priority and j.limit_key > n.key
        order by j.limit_key, j.run_at, j.id limit 1
      ) x
    ), seen as materialized (
      select n.key, n.run_at, n.id, n.fit from key_lane n limit cast(:lanes as integer)
    ), head as materialized (
      -- An unstartable head (doomed, unknown task with a key) is looked past.
      select n.key, cast(null as text) as task, n.run_at, n.id from seen n where n.fit and n.run_at <= now()
      union all
      select n.key, null, x.run_at, x.id
      from seen n
      cross join lateral (
        select j.run_at, j.id
        from akadze.jobs j
        where j.state = 'queued' and j.queue = l.queue and j.priority = step.priority and j.limit_key = n.key and j.run_at <= now()
          and j.task = any (cast(:tasks as text[])) and (least(j.expires_at, j.cancel_requested_at) > now()) is not false
        order by j.run_at, j.id limit 1
      ) x
      where not n.fit and n.run_at <= now()
      union all
      select null, t.task, x.run_at, x.id
      from unnest(cast(:tasks as text[])) as t(task)
      cross join lateral (
        select j.run_at, j.id
        from akadze.jobs j
        where j.state = 'queued' and j.queue = l.queue and j.priority = step.priority and j.limit_key is null and j.task = t.task
          and j.run_at <= now() and (least(j.expires_at, j.cancel_requested_at) > now()) is not false
        order by j.run_at, j.id limit 1
      ) x
      where (select d.needed from deep d)
    ), lane as materialized (
      -- At most room lanes can serve, and those with the oldest heads do.
      select h.key, h.task, r.room, row_number() over (order by h.run_at, h.id) as rank
      from (select h.key, h.task, h.run_at, h.id from head h order by h.run_at, h.id) h
      left join lateral (
        select least(
          m.max_running - (
            select count(*) from akadze.jobs r
            where r.state = 'running' and r.limit_key = m.key and r.id <> all (cast(:finishing as bigint[]))),
          m.max_starts - (
            select count(*) from akadze.limit_starts s where s.key = m.key and s.started_at > now() - m."window"))
          - cardinality(array_positions(l.keys, m.key)) as room
        from akadze.limits m where m.key = h.key
        offset 0
      ) r on true
      where r.room > 0 or r.room is null
      limit l.room
    ), share as materialized (
      select n.key, n.task, n.room, case when (select count(*) from lane) * l.room <= 2000 then l.room else 2 * l.room / n.rank + 2 end as most
      from lane n
    ), lane_row as materialized (
      select n.key, x.run_at, x.id, x.place = n.most and n.most < l.room and (x.place < n.room) is not false as cut_here
      from share n
      cross join lateral (
        select y.run_at, y.id, row_number() over (order by y.run_at, y.id) as place
        from (
          (select j.run_at, j.id
          from akadze.jobs j
          where n.key is not null and j.state = 'queued' and j.queue = l.queue and j.priority = step.priority and j.limit_key = n.key
            and j.run_at <= now() and j.task = any (cast(:tasks as text[])) and (least(j.expires_at, j.cancel_requested_at) > now()) is not false
          order by j.run_at, j.id limit least(n.most, n.room))
          union all
          (select j.run_at, j.id
          from akadze.jobs j
          where n.key is null and j.state = 'queued' and j.queue = l.queue and j.priority = step.priority and j.limit_key is null
            and j.task = n.task and j.run_at <= now() and (least(j.expires_at, j.cancel_requested_at) > now()) is not false
          order by j.run_at, j.id limit n.most)
        ) y
      ) x
    ), cut as materialized (
      select c.run_at, c.id from lane_row c where c.cut_here
      union all
      select 'infinity', 9223372036854775807
      order by run_at, id limit 1
    ), far_fit as (
      select r.id, r.key, r.run_at from lane_row r cross join cut c where (r.run_at, r.id) <= (c.run_at, c.id)
    ), fit as (
      select c.id, c.key, c.run_at
      from (
        select n.id, n.key, n.run_at from near_fit n where not (select d.needed from deep d)
        union all
        select x.id, coalesce(x.key, ''), x.run_at from far_fit x
      ) c
      order by c.run_at, c.id limit l.room
    )
    select coalesce((select array_agg(f.id order by f.run_at, f.id) from fit f), cast('{}' as bigint[])) as ids,
      coalesce((select array_agg(f.key) from fit f), cast('{}' as text[])) as keys,
      (select cast(count(*) as integer) from seen) as lanes, (select max(n.key) from seen n) as last_key, (select min(n.run_at) from near n) as near_from,
      exists (select from lane_row r where r.cut_here) as cut
  ) best
  where l.room > 0 and step.priority is not null
), chosen as materialized (
  select c.id, c.place, l.priority from level l cross join lateral unnest(l.ids) with ordinality as c(id, place)
), locked as materialized (
  select m.key from akadze.limits m
  where m.key = any (array(
    select distinct j.limit_key from akadze.jobs j where j.id = any (array(select c.id from chosen c)) and j.limit_key is not null))
  order by m.key
  for update
)
select set_config('akadze.chosen', (
    select cast(coalesce(array_agg(c.id order by c.priority desc, c.place), cast('{}' as bigint[])) as text) from chosen c), true) <> '{}' as any_chosen,
  set_config('akadze.locked', (select cast(coalesce(array_agg(k.key), cast('{}' as text[])) as text) from locked k), true) <> '{}' as any_locked,
  (select max(l.lanes) from level l) as lanes, (select min(l.last_key) from level l where l.lanes >= cast(:lanes as integer)) as last_key,
  (select jsonb_agg(jsonb_build_array(l.queue, l.priority, l.near_from)) from level l where l.near_from is not null) as windows

-- name: choose_fair
-- The group of a job is its limit_key ('' for none). Within a level each free slot goes to the group with the fewest running in
-- the queue, ties to the oldest job. For several slots: the n-th job of a group has load = running + n - 1, and the picks are the
-- smallest by (load, run_at, id): the same order as picking one by one and counting each pick. At most room groups can be served,
-- and those are the first by (running, head); none of them gets beyond load "cut", so only that many of its rows are read (with
-- many groups an early cut; then lower levels wait for the next claim).
--   near: the first rows of the line. If they show room groups with nothing running, or are all there are, they are the exact answer.
--   far:  else the heads of the lanes. A bounded look is exact about "fewest running" among the groups seen.
with recursive known as materialized (
  select k.queue, k.priority, k.run_at
  from unnest(cast(:known_queues as text[]), cast(:known_priorities as smallint[]), cast(:known_run_ats as timestamptz[])) as k(queue, priority, run_at)
), busy as materialized (
  select r.queue, coalesce(r.limit_key, '') as key, cast(count(*) as integer) as running
  from akadze.jobs r
  where r.state = 'running' and r.id <> all (cast(:finishing as bigint[]))
  group by r.queue, coalesce(r.limit_key, '')
), total as materialized (
  select b.key, cast(sum(b.running) as integer) as running from busy b group by b.key
), level as (
  select q.queue collate "C" as queue, 32768 as priority, cast('{}' as bigint[]) as ids, cast('{}' as text[]) collate "C" as keys, q.slots + cast(:spare as integer) as room, 0 as lanes, cast('' as text) collate "C" as last_key, cast(null as timestamptz) as near_from
  from unnest(cast(:queues as text[]), cast(:slots as integer[])) as q(queue, slots)
  where q.slots > 0 and not exists (select from akadze.queue_pauses p where p.queue = q.queue)
  union all
  select l.queue, step.priority, best.ids, l.keys || best.keys, case when best.cut then 0 else l.room - cardinality(best.ids) end, best.lanes, best.last_key, best.near_from
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
    with recursive near as materialized (
      select j.id, j.run_at, coalesce(j.limit_key, '') as key,
        j.task = any (cast(:tasks as text[])) and (least(j.expires_at, j.cancel_requested_at) > now()) is not false as fit
      from akadze.jobs j
      where j.state = 'queued' and j.queue = l.queue and j.priority = step.priority and j.run_at <= now()
        and j.run_at >= coalesce((select k.run_at from known k where k.queue = l.queue and k.priority = step.priority), '-infinity')
      order by j.run_at, j.id
      limit cast(:near as integer) + 2 * l.room
    ), near_head as materialized (
      select distinct on (n.key) n.key, n.run_at, n.id from near n where n.fit order by n.key, n.run_at, n.id
    ), deep as materialized (
      select (select count(*) from near) >= cast(:near as integer) + 2 * l.room and (
        select count(*)
        from near_head n
        left join busy b on b.queue = l.queue and b.key = n.key
        left join total t on t.key = n.key
        left join lateral (
          select m.max_running, m.max_starts - (
            select count(*) from akadze.limit_starts s where s.key = m.key and s.started_at > now() - m."window") as starts
          from akadze.limits m where m.key = n.key
          offset 0
        ) m on true
        where b.key is null and n.key <> all (l.keys) and (m.max_running > coalesce(t.running, 0)) is not false and (m.starts > 0) is not false
      ) < l.room as needed
    ), key_lane as (
      select x.key, x.run_at, x.id, x.fit
      from (
        select j.limit_key as key, j.run_at, j.id,
          j.task = any (cast(:tasks as text[])) and (least(j.expires_at, j.cancel_requested_at) > now()) is not false as fit
        from akadze.jobs j
        where j.state = 'queued' and j.queue = l.queue and j.priority = step.priority and j.limit_key > cast(:after as text)
        order by j.limit_key, j.run_at, j.id limit 1
      ) x
      where (select d.needed from deep d)
      union all
      select x.key, x.run_at, x.id, x.fit
      from key_lane n
      cross join lateral (
        select j.limit_key as key, j.run_at, j.id,
          j.task = any (cast(:tasks as text[])) and (least(j.expires_at, j.cancel_requested_at) > now()) is not false as fit
        from akadze.jobs j
        where j.state = 'queued' and j.queue = l.queue and j.priority = step.priority and j.limit_key > n.key
        order by j.limit_key, j.run_at, j.id limit 1
      ) x
    ), seen as materialized (
      select n.key, n.run_at, n.id, n.fit from key_lane n limit cast(:lanes as integer)
    ), lane_head as materialized (
      select n.key, n.run_at, n.id from near_head n
      union all
      select n.key, n.run_at, n.id from seen n where n.fit and n.run_at <= now()
      union all
      select n.key, x.run_at, x.id
      from seen n
      cross join lateral (
        select j.run_at, j.id
        from akadze.jobs j
        where j.state = 'queued' and j.queue = l.queue and j.priority = step.priority and j.limit_key = n.key and j.run_at <= now()
          and j.task = any (cast(:tasks as text[])) and (least(j.expires_at, j.cancel_requested_at) > now()) is not false
        order by j.run_at, j.id limit 1
      ) x
      where not n.fit and n.run_at <= now()
      union all
      select '', x.run_at, x.id
      from unnest(cast(:tasks as text[])) as t(task)
      cross join lateral (
        select j.run_at, j.id
        from akadze.jobs j
        where j.state = 'queued' and j.queue = l.queue and j.priority = step.priority and j.limit_key is null and j.task = t.task
          and j.run_at <= now() and (least(j.expires_at, j.cancel_requested_at) > now()) is not false
        order by j.run_at, j.id limit 1
      ) x
      where (select d.needed from deep d)
    ), head as materialized (
      select g.key, g.run_at, g.id, coalesce(b.running, 0) + cardinality(array_positions(l.keys, g.key)) as running
      from (select distinct on (h.key) h.key, h.run_at, h.id from lane_head h order by h.key, h.run_at, h.id) g
      left join busy b on b.queue = l.queue and b.key = g.key
    ), served as materialized (
      select h.key, h.running, r.room
      from (select h.key, h.running, h.run_at, h.id from head h order by h.running, h.run_at, h.id) h
      left join lateral (
        select least(
          m.max_running - coalesce((select t.running from total t where t.key = m.key), 0),
          m.max_starts - (
            select count(*) from akadze.limit_starts s where s.key = m.key and s.started_at > now() - m."window"))
          - cardinality(array_positions(l.keys, m.key)) as room
        from akadze.limits m where m.key = h.key
        offset 0
      ) r on true
      where r.room > 0 or r.room is null
      order by h.running, h.run_at, h.id limit l.room
    ), cut as materialized (
      select case when count(*) >= l.room then max(s.running) when count(*) * l.room <= 2000 then max(s.running) + l.room
          else max(s.running) + 2 * l.room / count(*) + 1 end as load,
        count(*) < l.room and count(*) * l.room > 2000 as early
      from served s
    ), pick as (
      select p.id, s.key, s.running + p.turn as load, p.run_at
      from served s
      cross join cut c
      cross join lateral (
        select y.run_at, y.id, row_number() over (order by y.run_at, y.id) - 1 as turn
        from (
          (select j.run_at, j.id
          from akadze.jobs j
          where s.key <> '' and j.state = 'queued' and j.queue = l.queue and j.priority = step.priority and j.limit_key = s.key
            and j.run_at <= now() and j.task = any (cast(:tasks as text[])) and (least(j.expires_at, j.cancel_requested_at) > now()) is not false
          order by j.run_at, j.id limit least(l.room, s.room, c.load - s.running + 1))
          union all
          select x.run_at, x.id
          from unnest(cast(:tasks as text[])) as t(task)
          cross join lateral (
            select j.run_at, j.id
            from akadze.jobs j
            where j.state = 'queued' and j.queue = l.queue and j.priority = step.priority and j.limit_key is null
              and j.task = t.task and j.run_at <= now() and (least(j.expires_at, j.cancel_requested_at) > now()) is not false
            order by j.run_at, j.id limit least(l.room, c.load - s.running + 1)
          ) x
          where s.key = ''
        ) y
        order by y.run_at, y.id limit least(l.room, s.room, c.load - s.running + 1)
      ) p
    ), fit as (
      select p.id, p.key, p.load, p.run_at from pick p order by p.load, p.run_at, p.id limit l.room
    )
    select coalesce((select array_agg(f.id order by f.load, f.run_at, f.id) from fit f), cast('{}' as bigint[])) as ids,
      coalesce((select array_agg(f.key) from fit f), cast('{}' as text[])) as keys,
      (select cast(count(*) as integer) from seen) as lanes, (select max(n.key) from seen n) as last_key, (select min(n.run_at) from near n) as near_from,
      exists (select from cut c join fit f on f.load >= c.load where c.early) as cut
  ) best
  where l.room > 0 and step.priority is not null
), chosen as materialized (
  select c.id, c.place, l.priority from level l cross join lateral unnest(l.ids) with ordinality as c(id, place)
), locked as materialized (
  select m.key from akadze.limits m
  where m.key = any (array(select distinct j.limit_key from akadze.jobs j where j.id = any (array(select c.id from chosen c)) and j.limit_key is not null))
  order by m.key
  for update
)
select set_config('akadze.chosen', (select cast(coalesce(array_agg(c.id order by c.priority desc, c.place), cast('{}' as bigint[])) as text) from chosen c), true) <> '{}' as any_chosen,
  set_config('akadze.locked', (select cast(coalesce(array_agg(k.key), cast('{}' as text[])) as text) from locked k), true) <> '{}' as any_locked,
  (select max(l.lanes) from level l) as lanes, (select min(l.last_key) from level l where l.lanes >= cast(:lanes as integer)) as last_key,
  (select jsonb_agg(jsonb_build_array(l.queue, l.priority, l.near_from)) from level l where l.near_from is not null) as windows
