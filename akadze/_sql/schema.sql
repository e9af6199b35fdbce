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
-- In the transaction of the step, under lock_migrations.
insert into akadze.schema_migrations (version) values (cast(:version as text)) returning version
