-- A callback that names no job is matched by the thread it speaks of.
create index jobs_by_thread on jobs (thread_id) where finished_at is null;

-- What a caller has running counts towards the usage limit; the index over all unfinished jobs does not know whose they are.
create index jobs_unfinished_by_owner on jobs (created_by) where finished_at is null;
