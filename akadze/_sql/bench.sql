-- What `akadze bench` needs: a scratch database, and a bare table whose statements show what the server itself can do.

-- name: create_database
-- Not in a transaction. Fails if another benchmark runs on this server, or one was killed: nothing else has this name.
create database akadze_bench

-- name: drop_database
-- With whatever is still connected to it: nobody else uses it.
drop database if exists akadze_bench with (force)

-- name: create_table
-- One worker at a time uses it.
create table public.bare_jobs (
  id bigint generated always as identity primary key,
  queue text not null default 'default',
  args jsonb not null default '{}',
  state text not null default 'queued',
  run_at timestamptz not null default now()
) with (fillfactor = 80)

-- name: create_index
-- The least that a claim can do with.
create index bare_jobs_line on public.bare_jobs (queue, run_at, id) where state = 'queued'

-- name: insert_bare
-- One row in a transaction of its own.
insert into public.bare_jobs (args) values (cast(cast(:args as text) as jsonb)) returning id

-- name: copy_bare
-- The fastest way in.
copy public.bare_jobs (args) from stdin

-- name: fill_bare
-- A backlog.
insert into public.bare_jobs (args) select '{"number": 1}' from generate_series(1, cast(:count as integer))

-- name: fill_jobs
-- The same backlog for akadze.
insert into akadze.jobs (task, args) select 'bench.nothing', '{"number": 1}' from generate_series(1, cast(:count as integer))

-- name: exchange_bare
-- Ends a batch and claims the next in one statement, with no feature of a queue. skip locked, as a claim has to.
with ended as (
  update public.bare_jobs j set state = 'done' where j.id = any (cast(:ended as bigint[])) and j.state = 'running'
)
update public.bare_jobs j
set state = 'running'
where j.id = any (array(
  select q.id
  from public.bare_jobs q
  where q.state = 'queued' and q.queue = 'default' and q.run_at <= now()
  order by q.run_at, q.id
  limit cast(:slots as integer)
  for update skip locked))
returning j.id, j.args

-- name: empty_tables
-- Between two measurements; nothing runs then.
truncate public.bare_jobs, akadze.jobs restart identity

-- name: vacuum
-- Not in a transaction. Each measurement begins with fresh statistics.
vacuum analyze

-- name: server_settings
-- What the figures depend on. Reads only.
select current_setting('server_version') as version, current_setting('fsync') as fsync,
  current_setting('synchronous_commit') as synchronous_commit
