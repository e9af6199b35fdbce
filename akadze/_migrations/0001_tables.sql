-- The tables of akadze. Plain DDL for PostgreSQL 13 and newer; needs no extension and no superuser.
-- Keys are compared byte-wise (collate "C"): faster, and no unique index depends on the system's locale files.

create table akadze.jobs (
  id bigint generated always as identity,
  run_at timestamptz not null default now(),
  created_at timestamptz not null default now(),
  run_count integer not null default 0,
  attempt integer not null default 0,
  max_attempts integer not null default 3,
  snoozes integer not null default 0,
  priority smallint not null default 0,
  state text collate "C" not null default 'queued'
    check (state in ('queued', 'running', 'succeeded', 'failed', 'cancelled')),
  task text collate "C" not null,
  queue text collate "C" not null default 'default',
  args jsonb not null default '{}',
  meta jsonb not null default '{}',
  errors jsonb not null default '[]',
  limit_key text collate "C",
  unique_key text collate "C",
  worker_id uuid,
  started_at timestamptz,
  finished_at timestamptz,
  expires_at timestamptz,
  cancel_requested_at timestamptz,
  result jsonb,
  expired boolean not null default false,
  -- Queue and state ride along, so that counting all jobs reads this index alone, however wide the rows are (count_jobs). Each
  -- version of a row has an entry here anyway: that costs 80 bytes of WAL per job, where one more index would cost entries.
  primary key (id) include (queue, state),
  -- What Python cannot read or the statements cannot work with would stop worker after worker, so no row holds it. The years are
  -- those that enqueue takes; "never" is null.
  check (run_at between '0002-01-01 00:00:00+00' and '9998-12-31 23:59:59.999999+00'),
  check (expires_at between '0002-01-01 00:00:00+00' and '9998-12-31 23:59:59.999999+00'),
  check (jsonb_typeof(meta) = 'object'),
  check (jsonb_typeof(errors) = 'array')
) with (fillfactor = 90, autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 1000,
        autovacuum_vacuum_insert_scale_factor = 0.1, autovacuum_analyze_scale_factor = 0.05);

-- The line: claim order within a queue.
create index jobs_line on akadze.jobs (queue, priority desc, run_at, id) where state = 'queued';
-- The lanes: the same rows by key, or by task where there is no key, so that a claim can step over a lane without reading its
-- rows. Each row is in exactly one of the two; there are as many lanes as keys plus tasks.
create index jobs_key_lanes on akadze.jobs (queue, priority, limit_key, run_at, id) where state = 'queued' and limit_key is not null;
create index jobs_task_lanes on akadze.jobs (queue, priority, task, run_at, id) where state = 'queued' and limit_key is null;
-- What runs: counted by key (limits), by key and queue (fair), read whole by rescue.
create index jobs_running on akadze.jobs (limit_key, queue) where state = 'running';
create unique index jobs_unique_key on akadze.jobs (unique_key) where unique_key is not null and state in ('queued', 'running');
-- Queued jobs that have to be ended: least() ignores nulls, and a cancel request is always in the past.
create index jobs_doomed on akadze.jobs (least(expires_at, cancel_requested_at))
  where state = 'queued' and (expires_at is not null or cancel_requested_at is not null);
create index jobs_meta on akadze.jobs using gin (meta jsonb_path_ops) where meta <> '{}';
-- No index on finished_at: retention walks along the primary key.

create table akadze.workers (
  id uuid primary key,
  hostname text not null,
  pid integer not null,
  queues text[] not null,
  started_at timestamptz not null default now(),
  heartbeat_at timestamptz not null default now(),
  heartbeat_ttl interval not null,
  sleeping boolean not null default false
) with (fillfactor = 50, autovacuum_vacuum_threshold = 500, autovacuum_vacuum_scale_factor = 0);

create table akadze.periodic_runs (
  task text collate "C" not null,
  slot timestamptz not null,
  job_id bigint,
  created_at timestamptz not null default now(),
  primary key (task, slot)
);

create table akadze.queue_pauses (
  queue text collate "C" primary key,
  paused_at timestamptz not null default now()
);

create table akadze.limits (
  key text collate "C" primary key,
  max_running integer check (max_running >= 0),
  max_starts integer check (max_starts >= 0),
  "window" interval check ("window" > interval '0'),
  check ((max_starts is null) = ("window" is null))
) with (fillfactor = 70);

create table akadze.limit_starts (
  key text collate "C" not null,
  started_at timestamptz not null
) with (autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_scale_factor = 0.01);
create index limit_starts_key on akadze.limit_starts (key, started_at);
