-- What the command line shows of a job beside its Job. Instants come as ISO text, as in jobs.sql.

-- name: read_instants
-- When the job was made, is due, was started and ended. Reads only.
select to_json(j.created_at) #>> '{}' as created_at, to_json(j.run_at) #>> '{}' as run_at,
  to_json(j.started_at) #>> '{}' as started_at, to_json(j.finished_at) #>> '{}' as finished_at
from akadze.jobs j
where j.id = cast(:id as bigint)
