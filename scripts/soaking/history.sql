-- What the checks read: each change of a row, written by the transaction that makes it, so a change and its entry are one.

create table public.changes (
  seq bigint generated always as identity primary key,
  job_id bigint not null,
  at timestamptz not null default clock_timestamp(),
  old_state text, new_state text, run_count integer, attempt integer, snoozes integer,
  old_worker uuid, new_worker uuid, limit_key text, run_at timestamptz, started_at timestamptz, cancel boolean, lost boolean
);
create function public.note_change() returns trigger language plpgsql as $$
begin
  if tg_op = 'DELETE' then
    insert into public.changes (job_id, old_state) values (old.id, old.state);
  elsif tg_op = 'INSERT' then
    insert into public.changes (job_id, new_state, run_count, attempt, snoozes, limit_key, run_at)
    values (new.id, new.state, new.run_count, new.attempt, new.snoozes, new.limit_key, new.run_at);
  else
    insert into public.changes (job_id, old_state, new_state, run_count, attempt, snoozes, old_worker, new_worker, limit_key,
      run_at, started_at, cancel, lost)
    values (new.id, old.state, new.state, new.run_count, new.attempt, new.snoozes, old.worker_id, new.worker_id, new.limit_key,
      new.run_at, new.started_at, new.cancel_requested_at is not null,
      new.attempt > old.attempt and new.errors -> -1 ->> 'error' = 'WorkerLost');
  end if;
  return null;
end $$;
create trigger note_change after insert or update or delete on akadze.jobs for each row execute function public.note_change();

create table public.beats (
  worker uuid not null, at timestamptz not null, ttl interval not null, pid integer not null, gone boolean not null
);
create function public.note_beat() returns trigger language plpgsql as $$
begin
  if tg_op = 'DELETE' then
    insert into public.beats values (old.id, clock_timestamp(), old.heartbeat_ttl, old.pid, true);
  elsif tg_op = 'INSERT' or new.heartbeat_at <> old.heartbeat_at then
    insert into public.beats values (new.id, new.heartbeat_at, new.heartbeat_ttl, new.pid, false);
  end if;
  return null;
end $$;
create trigger note_beat after insert or update or delete on akadze.workers for each row execute function public.note_beat();

create table public.policies (
  at timestamptz not null default clock_timestamp(), key text not null, max_running integer, max_starts integer, seconds double precision
);
create function public.note_policy() returns trigger language plpgsql as $$
begin
  if tg_op = 'DELETE' then
    insert into public.policies (key) values (old.key);
  else
    insert into public.policies (key, max_running, max_starts, seconds)
    values (new.key, new.max_running, new.max_starts, extract(epoch from new."window"));
  end if;
  return null;
end $$;
create trigger note_policy after insert or update or delete on akadze.limits for each row execute function public.note_policy();

-- What complete_tx blocks write.
create table public.effects (job_id bigint not null, run integer not null);
