-- Settings of the connections that a worker holds for itself.

-- name: tune_session
-- Changes nothing but this session (:local false) or this transaction (:local true, for a pooler in transaction mode).
-- Plans are kept, and a plan that was made while the queue was empty must not be a sequential scan: it would cost seconds when
-- 100 000 jobs arrive before the next analyse (measured: 104 to 1 532 ms per claim instead of 0.6 to 3.7). The recursive
-- queries have absurd estimates, for which jit would compile 100 ms per call, and the server would plan anew at each call.
select set_config('jit', 'off', cast(:local as boolean)),
  set_config('plan_cache_mode', 'force_generic_plan', cast(:local as boolean)),
  set_config('enable_seqscan', 'off', cast(:local as boolean)),
  set_config('enable_bitmapscan', 'off', cast(:local as boolean))

-- name: isolate_session
-- A role or database may default to another isolation; skip locked needs read committed.
select set_config('default_transaction_isolation', 'read committed', false)

-- name: use_utf8
-- With an encoding that lacks a character, one job whose arguments have it would stop worker after worker. Poolers know this setting.
select set_config('client_encoding', 'UTF8', false)

-- name: limit_waiting
-- For the statement after it: a limit may be held by a caller's transaction that stays open for long.
select set_config('lock_timeout', cast(:milliseconds as text), true)

-- name: reset_waiting
-- After that, where hooks follow: how long their statements wait is not for us to say.
set local lock_timeout to default

-- name: begin_exchange
-- A transaction of its own for an exchange; skip locked needs read committed, which a role or database may not have as its default.
begin isolation level read committed

-- name: begin_work
-- Anything that makes psycopg begin the caller's transaction, in the way that its connection is set to. Reads only. In a transaction
-- that an error has broken it raises, where COMMIT would roll back and say nothing.
select 1 as begun

-- name: backend_pid
-- The process that answers. Behind a pooler it is not the one that the connection was told of.
select pg_backend_pid() as pid

-- name: listen
-- One channel for all queues; the payload is the queue's name.
listen akadze

-- name: notify
-- The worker tests its own listening with this.
select pg_notify('akadze', cast(:payload as text))

-- name: begin
-- These six are for a driver without a savepoint of its own. A savepoint stands only around a user's hook, so that its error
-- leaves the caller's transaction usable.
begin

-- name: commit
-- Ends what begin has begun, where the caller's connection is in autocommit.
commit

-- name: rollback
-- Ends what begin has begun, after an error.
rollback

-- name: open_savepoint
-- In the caller's transaction.
savepoint akadze_hook

-- name: release_savepoint
-- Keeps what was done since open_savepoint.
release savepoint akadze_hook

-- name: return_to_savepoint
-- Undoes what was done since open_savepoint.
rollback to savepoint akadze_hook

-- name: mark_transaction
-- Marks the open transaction. A commit or rollback in words, which the driver does not report once the next statement has begun a new
-- transaction, takes the mark away, and so does `reset all`. Reads nothing: a block may still choose its isolation level, or lock before its first snapshot.
set local akadze.block = 'open'

-- name: find_mark
select coalesce(current_setting('akadze.block', true), '') = 'open' as marked

-- name: find_transaction
-- The number of the open transaction, null while it has written nothing: an exchange that finds no job must not use a number up.
select txid_current_if_assigned() as transaction

-- name: find_database
select cast(current_database() as text) as database
