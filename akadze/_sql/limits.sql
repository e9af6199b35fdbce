-- Limits: policies by key. Lock order: limits by key, then jobs.

-- name: set_limit
-- Upsert; what is not given keeps its value. A claim that holds the row finishes first, the next one sees the new policy.
-- A window of days would be longer or shorter on a day on which the clocks of the session's time zone change.
insert into akadze.limits as m (key, max_running, max_starts, "window")
values (cast(:key as text), cast(:max_running as integer), cast(:max_starts as integer),
  make_interval(secs => cast(:window as double precision)))
on conflict (key) do update
set max_running = coalesce(excluded.max_running, m.max_running),
  max_starts = coalesce(excluded.max_starts, m.max_starts),
  "window" = coalesce(excluded."window", m."window")

-- name: delete_limit
-- Waits for a claim that holds the row. The marks go in a second statement, whose snapshot sees the marks of that claim too.
delete from akadze.limits m where m.key = cast(:key as text)

-- name: delete_starts
-- After delete_limit in the same transaction, so no claim adds marks of this key meanwhile.
delete from akadze.limit_starts s where s.key = cast(:key as text)

-- name: list_limits
-- Reads only.
-- Whole microseconds: how a session shows fractions is a setting of it.
select m.key, m.max_running, m.max_starts, cast(extract(epoch from m."window") * 1000000 as bigint) as microseconds
from akadze.limits m
order by m.key
