-- What helpers for tests do to a database of tests.

-- name: empty_tables
-- All rows of akadze but the list of its migrations. Waits for whoever is at work on them, so that no worker's rows come after it.
truncate akadze.jobs, akadze.workers, akadze.periodic_runs, akadze.queue_pauses, akadze.limits, akadze.limit_starts
