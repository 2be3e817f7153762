-- One small row for each job that the runtime is asked about: a lease or a check never rewrites the job's documents.
-- The columns of `jobs` that it replaces stay unused, because removing them would rewrite the whole table.
create table job_checks (
  job_id text primary key,
  -- Empty for a job without an owner. Due jobs are taken in turn by owner.
  owner text not null,
  -- The job's type, if the type limits how many of its runs are active.
  limited_type text,
  -- Since when the job waits for a place among the active runs of its type; null when it does not wait.
  queued_at bigint,
  due_at bigint not null,
  lease_id text,
  -- The lease ends at `leased_until`, or earlier if this node stops.
  lease_node text,
  leased_until bigint,
  -- How often starting the current run was tried: above 0, a run may exist that this service does not know.
  starts bigint not null,
  last_start_at bigint,
  -- When the thread was first seen without the run of the last attempt.
  unseen_at bigint,
  checks bigint not null,
  last_check_at bigint,
  trouble text
) with (fillfactor = 70);

create index job_checks_due on job_checks (due_at);
create index job_checks_by_owner on job_checks (owner, due_at);
create index job_checks_active on job_checks (limited_type) where limited_type is not null and queued_at is null;
create index job_checks_queued on job_checks (limited_type, owner, queued_at) where queued_at is not null;

insert into job_checks (job_id, owner, due_at, lease_id, leased_until, starts, last_start_at, checks, last_check_at, trouble)
select id, coalesce(created_by, ''), coalesce(next_check_at, (extract(epoch from clock_timestamp()) * 1000)::bigint), lease_token,
  lease_until, start_attempts, case when start_attempts > 0 then (extract(epoch from clock_timestamp()) * 1000)::bigint end,
  check_attempts, checked_at, last_error
from jobs where finished_at is null and status in ('processing', 'generating');

-- The nodes that run, each with a heartbeat. What a node has leased is free again when its heartbeat stops.
create table nodes (
  id text primary key,
  started_at bigint not null,
  expires_at bigint not null
);

alter table deliveries add column lease_node text;
