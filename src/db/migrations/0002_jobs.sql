-- One row per job. Everything a client sees of a run's end is written here, or beside it in the same transaction.
create table jobs (
  id text primary key,
  type text not null,
  status text not null,
  input text,
  output text,
  error_code text,
  error_message text,
  project_id text,
  created_by text,
  thread_id text not null,
  run_id text,
  trace_id text,
  tracer_trace_id text,
  settled_by text,
  -- Which run of this job is the current one: 1, and one more with each resume.
  run_seq integer not null,
  -- How often starting the current run was tried: past 0, a run may exist that we never heard of.
  start_attempts integer not null,
  resume_input text,
  -- What the graph asks, while it awaits an answer.
  interrupts text,
  cancel_requested_at bigint,
  checked_at bigint,
  next_check_at bigint,
  check_attempts integer not null,
  last_error text,
  lease_token text,
  lease_until bigint,
  deadline_at bigint not null,
  created_at bigint not null,
  started_at bigint,
  finished_at bigint,
  updated_at bigint not null
);

create index jobs_by_owner on jobs (created_by, id);
create index jobs_due on jobs (next_check_at) where next_check_at is not null;

-- Every run a job ever had, so that a late callback of an earlier one is known for what it is.
create table job_runs (
  run_id text primary key,
  job_id text not null references jobs (id),
  run_seq integer not null,
  created_at bigint not null
);

create index job_runs_by_job on job_runs (job_id);

create table callbacks (
  id text primary key,
  path text not null,
  type text not null,
  job_id text,
  thread_id text not null,
  run_id text not null,
  status text not null,
  outcome text not null,
  received_at bigint not null,
  body text not null
);

create index callbacks_by_job on callbacks (job_id, id);

-- What happened to a job, in order. Checks that found the same thing in a row share one entry and count up.
create table job_timeline (
  id text primary key,
  job_id text not null references jobs (id),
  at bigint not null,
  kind text not null,
  via text,
  detail text not null,
  times integer not null,
  last_at bigint not null
);

create index job_timeline_by_job on job_timeline (job_id, id);

create table usage_records (
  job_id text primary key references jobs (id),
  subject text,
  period text not null,
  type text not null,
  input_tokens bigint not null,
  output_tokens bigint not null,
  total_tokens bigint not null,
  settled_at bigint not null
);

create table usage_counters (
  subject text not null,
  period text not null,
  type text not null,
  runs bigint not null,
  input_tokens bigint not null,
  output_tokens bigint not null,
  total_tokens bigint not null,
  primary key (subject, period, type)
);
