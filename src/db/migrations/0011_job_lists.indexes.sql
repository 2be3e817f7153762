-- One index for each filter of a job list. Where few jobs qualify, the index holds only those, so that the others do not
-- pay for it when they end.
create index if not exists jobs_by_status on jobs (status, id) where status <> 'completed';
create index if not exists jobs_by_owner_and_status on jobs (created_by, status, id) where status <> 'completed';
create index if not exists jobs_by_type on jobs (type, id);
create index if not exists jobs_by_project on jobs (project_id, id) where project_id is not null;
create index if not exists jobs_by_error on jobs (error_code, id) where error_code is not null;
create index if not exists jobs_by_missed_callback on jobs (settled_by, id) where settled_by in ('read', 'sweep');
create index if not exists jobs_by_conversation on jobs (thread_id, id);
create index if not exists jobs_by_trace on jobs (trace_id, id) where trace_id is not null;
create index if not exists jobs_by_retry on jobs (retry_of, id) where retry_of is not null;
