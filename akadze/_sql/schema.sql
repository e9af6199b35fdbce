-- What migrate and applied_versions ask. The steps themselves are in akadze/_migrations.

-- name: lock_migrations
-- One migrate at a time, for the length of one step. The key is that of the word akadze; a step that cannot get it gives up.
select pg_advisory_xact_lock(hashtextextended('akadze.migrate', 0))

-- name: limit_waiting
-- A step waits no longer than this for locks that others hold, and holds up nobody for longer.
select set_config('lock_timeout', '30s', true), set_config('statement_timeout', '0', true)

-- name: find_schema
-- Whether the schema and the list of versions are there. Reads only; needs no rights.
select exists (select from pg_catalog.pg_namespace n where n.nspname = 'akadze') as schema,
  exists (
    select from pg_catalog.pg_class c join pg_catalog.pg_namespace n on n.oid = c.relnamespace
    where n.nspname = 'akadze' and c.relname = 'schema_migrations'
  ) as versions

-- name: create_schema
-- Only where find_schema did not see it: the right to create schemas is not needed afterwards.
create schema akadze

-- name: create_versions
-- Under lock_migrations, so nobody else creates it meanwhile.
create table akadze.schema_migrations (
  version text collate "C" primary key,
  applied_at timestamptz not null default now()
)

-- name: list_versions
-- Reads only.
select m.version from akadze.schema_migrations m order by m.version

-- name: add_version
-- In the transaction of the step, under lock_migrations; or after all of a step that builds indexes, in its turn.
insert into akadze.schema_migrations (version) values (cast(:version as text)) returning version

-- name: read_session
-- Which of the server's sessions answers: behind a pooler it is not the one that the driver was told of. And its timeouts,
-- which are put back after a build: the connection may be one that lives on.
select pg_backend_pid() as pid,
  current_setting('lock_timeout') as lock_timeout, current_setting('statement_timeout') as statement_timeout

-- name: take_turn
-- One migrate builds indexes at a time. It does so outside a transaction, so the lock is the session's. It is tried, not
-- waited for: a build waits for all that wait with a snapshot, and the two would wait for each other.
select pg_try_advisory_lock(hashtextextended('akadze.migrate.indexes', 0)) as taken

-- name: pause
-- Between two tries. A build waits for its snapshot no longer than this.
select pg_sleep(0.2)

-- name: limit_building
-- As limit_waiting, for the session: a build is not in a transaction that a setting could be local to.
select set_config('lock_timeout', '30s', false), set_config('statement_timeout', '0', false)

-- name: give_turn
-- If the session ends before this, the server gives its lock back.
select set_config('lock_timeout', cast(:lock_timeout as text), false),
  set_config('statement_timeout', cast(:statement_timeout as text), false),
  pg_advisory_unlock(hashtextextended('akadze.migrate.indexes', 0))
