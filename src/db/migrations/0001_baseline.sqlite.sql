-- The schema of an empty SQLite database. The file for PostgreSQL beside this one has the same tables and columns.
-- Times are epoch milliseconds in `bigint`, flags 0 or 1, documents JSON text. The tables are in the order of the folders
-- in docs/ARCHITECTURE.md. Since 1.0.0 it is frozen: docs/releasing.md.

-- projects/ -------------------------------------------------------------------

-- What callers create, read and change.
create table projects (
  id text primary key,
  name text not null,
  description text,
  metadata text not null,
  -- Null once the user was erased.
  created_by text,
  -- Increases with each change: the `ETag`.
  version bigint not null,
  created_at bigint not null,
  updated_at bigint not null
);

-- For the export and the erasure of a user.
create index projects_by_creator on projects (created_by, id);

-- users/ ----------------------------------------------------------------------

-- The profiles of users, by the subject of their tokens.
create table users (
  sub text primary key,
  email text,
  display_name text,
  avatar_url text,
  locale text,
  time_zone text,
  push_enabled smallint not null,
  -- Increases with each change: the `ETag`.
  version bigint not null,
  created_at bigint not null,
  updated_at bigint not null,
  last_seen_at bigint not null
);

create index users_by_age on users (created_at, sub);

-- Users by the beginning of their e-mail address. The primary key serves the beginning of a sub.
create index users_by_email on users (lower(email), sub) where email is not null;

-- What every node must know of a user within seconds. Subs that never signed in may be here too.
create table user_states (
  sub text primary key,
  blocked_at bigint,
  -- The operation that erases the user now. While it runs, the user is refused like a blocked one.
  erasing text,
  erased_at bigint,
  -- Increases with each change, so that a node reads only what changed since its last read.
  version bigint not null
);

create index user_states_by_version on user_states (version);

-- One row: the last version given out. Its lock makes versions appear in their order.
create table user_state_version (
  id integer primary key,
  version bigint not null
);

insert into user_state_version (id, version) values (1, 0);

-- operations/ -----------------------------------------------------------------

-- Work on many records, done in the background. Its items are frozen when it is created.
create table operations (
  id text primary key,
  action text not null,
  state text not null,
  total bigint not null,
  -- The items up to this place are done. It is written in the transaction of their effects.
  position bigint not null,
  failed bigint not null,
  skipped bigint not null,
  created_by text not null,
  -- The actor and the address that started it, as JSON: the audit entry of each item names them.
  origin text not null,
  created_at bigint not null,
  -- No node takes the operation before this time.
  due_at bigint,
  -- Since when its steps wait for another service that fails.
  failing_since bigint,
  finished_at bigint,
  lease_token text,
  -- The node that works on it. The lease ends when the node stops.
  lease_node text
);

create index operations_unfinished on operations (id) where finished_at is null;

-- The records that an operation works on, in their order.
create table operation_items (
  operation_id text not null,
  place bigint not null,
  object_id text not null,
  -- For a retry: the newest retry of the job that the operation knew when it was created. With another one, the item is
  -- skipped.
  retried_as text,
  -- Why the item failed.
  error text,
  -- Why the item was skipped.
  skipped text,
  primary key (operation_id, place)
);

-- The failed items of an operation, in their order.
create index operation_items_failed on operation_items (operation_id, place) where error is not null;
create index operation_items_skipped on operation_items (operation_id, place) where skipped is not null;

-- stats/ ----------------------------------------------------------------------

-- What happened in each bucket of time, counted outside of the transactions that caused it.
create table stats (
  -- The length of the bucket.
  seconds bigint not null,
  bucket_at bigint not null,
  name text not null,
  count bigint not null,
  primary key (seconds, bucket_at, name)
);

-- How far each source has been counted. It is written in the transaction of the counts.
create table stats_cursors (
  source text primary key,
  position bigint not null
);

insert into stats_cursors (source, position) values ('events', 0), ('time', 0);

-- service-accounts/ -----------------------------------------------------------

-- The identities of backends.
create table service_accounts (
  id text primary key,
  name text not null,
  -- Separated by spaces.
  scopes text not null,
  -- Null once the user was erased.
  created_by text,
  created_at bigint not null,
  expires_at bigint,
  revoked_at bigint,
  last_used_at bigint
);

-- An account has more than one valid key only during the grace period of a rotation. The key itself is never stored.
create table service_keys (
  id text primary key,
  account_id text not null references service_accounts (id),
  hash text not null unique,
  -- The end of the key, which people recognize it by.
  hint text not null,
  created_at bigint not null,
  expires_at bigint
);

create index service_keys_by_account on service_keys (account_id);

-- jobs/ -----------------------------------------------------------------------

-- One row per job. Everything a client sees of a run's end is here, or is written in the same transaction.
create table jobs (
  id text primary key,
  type text not null,
  status text not null,
  error_code text,
  error_message text,
  project_id text,
  -- The owner. Null for a job that a callback created and no user has claimed, and once the user was erased.
  created_by text,
  -- Who asked for the current run, if that was not the owner.
  actor text,
  -- The scopes of the owner's request for the current run, as a JSON list. Null if another principal asked.
  scopes text,
  -- The job that this one repeats, and the newest job that repeats this one. They stay when the other job is deleted.
  retry_of text,
  retried_as text,
  -- The job whose conversation this one continues.
  continues text,
  thread_id text not null,
  -- The current run. Null until the runtime has accepted it.
  run_id text,
  -- Which run of this job is the current one: 1, and one more with each resume.
  run_seq integer not null,
  -- The traces that the graph reported: its own, and that of the tracing tool.
  trace_id text,
  tracer_trace_id text,
  -- The trace of the request that started the job, as a W3C `traceparent`.
  trace_context text,
  -- The first hint that the current run has ended.
  first_hint text,
  -- The hint that ended the job: `first_hint`, also when a later check confirmed it.
  settled_by text,
  -- `failed`: the output does not fit the schema of the type, or is too large to be checked.
  output_check text,
  -- Evidence about the end of the run that must be confirmed: its kind, and when it was first seen.
  awaiting_confirmation text,
  awaiting_confirmation_since bigint,
  -- The tokens that the graph reported.
  input_tokens bigint,
  output_tokens bigint,
  total_tokens bigint,
  cancel_requested_at bigint,
  -- The last check and the number of checks, written when the checks of the job end. Until then `job_checks` has them.
  checked_at bigint,
  check_attempts integer not null,
  deadline_at bigint not null,
  -- When its owner wanted it to start.
  run_at bigint,
  -- While it awaits an answer: when its owner is reminded, null if that was done; and when the job fails without an answer.
  remind_at bigint,
  answer_by bigint,
  created_at bigint not null,
  started_at bigint,
  finished_at bigint,
  updated_at bigint not null,
  -- When the documents of the job were erased with its owner.
  erased_at bigint,
  -- Fingerprints of the questions that `resume_input` answers, as a JSON list.
  resume_questions text,
  -- The documents, which may be large. They are last, because SQLite finds a column behind them by reading them. Null
  -- input: the run was started elsewhere, or the documents were erased.
  input text,
  output text,
  -- The questions of the graph, while it awaits an answer.
  interrupts text,
  resume_input text,
  -- What the client configured for the graph: a JSON object.
  configurable text
);

-- One index for each filter of a job list. None names a column that every end of a job changes: lists by status, error
-- and missed callback read `uncommon_jobs`.
create index jobs_by_owner on jobs (created_by, id);
create index jobs_by_owner_and_project on jobs (created_by, project_id, id) where project_id is not null;
create index jobs_by_type on jobs (type, id);
create index jobs_by_project on jobs (project_id, id) where project_id is not null;
create index jobs_by_conversation on jobs (thread_id, id);
create index jobs_by_trace on jobs (trace_id, id) where trace_id is not null;
-- For the erasure of an actor.
create index jobs_by_actor on jobs (actor, id) where actor is not null;
create index jobs_by_retry on jobs (retry_of, id) where retry_of is not null;
create index jobs_retried on jobs (id) where retried_as is not null;
-- With the event log, this finds the jobs that ended after a time: an erasure deletes the events of its jobs.
create index jobs_erased on jobs (erased_at) where erased_at is not null;

-- The conversations: the threads of the runtime that jobs are on. Written when a turn begins, never when it ends, and
-- deleted with the last job on the thread.
create table threads (
  id text primary key,
  -- Null while no job on it has an owner, and once the user was erased.
  owner text,
  -- The type of its first turn.
  type text not null,
  -- The first words of the first turn.
  title text,
  -- The job of the newest turn.
  newest text not null,
  -- 1 if this service created the thread at the runtime.
  is_own smallint not null,
  -- 1 once the start of a turn was repeated on it. From then on every run names the checkpoint that it begins at.
  is_pinned smallint not null,
  -- The newest run of the deleted jobs on it, and its time. The history of the thread contains that run.
  deleted_run text,
  deleted_run_at bigint,
  -- The thread that took its place when the start of its first turn was repeated.
  replaced_by text,
  -- Since when the conversation is being deleted. It takes no new turn.
  deleting_at bigint
);

create index threads_by_owner on threads (owner, newest) where replaced_by is null;
create index threads_replaced on threads (replaced_by) where replaced_by is not null;

-- What lists filter by, for the jobs that did not simply complete: unfinished, failed, cancelled, without a
-- callback, or with an output that does not fit. These are few, so the indexes stay small. The columns have names of their own, because statements join the table with
-- `jobs`.
create table uncommon_jobs (
  id text primary key,
  -- The columns `created_by`, `status` and `error_code` of the job.
  owner text,
  state text not null,
  failure text,
  -- `read` or `sweep`: the hint that ended the job in place of a callback.
  missed_by text,
  -- The column `output_check` of the job.
  unfit text,
  -- When the job ended; of an unfinished job, when it was created, or its `run_at` if that is later.
  since bigint not null
) without rowid;

create index uncommon_jobs_by_status on uncommon_jobs (state, id);
create index uncommon_jobs_by_age on uncommon_jobs (state, since);
create index uncommon_jobs_by_owner on uncommon_jobs (owner, state, id);
create index uncommon_jobs_by_error on uncommon_jobs (failure, id) where failure is not null;
create index uncommon_jobs_by_missed_callback on uncommon_jobs (missed_by, id) where missed_by is not null;
create index uncommon_jobs_by_output_check on uncommon_jobs (unfit, id) where unfit is not null;

-- Triggers keep `uncommon_jobs` right for every statement that changes a job.
create trigger uncommon_jobs_added after insert on jobs
when new.status <> 'completed' or new.settled_by in ('read', 'sweep') or new.output_check is not null begin
  insert into uncommon_jobs (id, owner, state, failure, missed_by, unfit, since) values (new.id, new.created_by, new.status,
    new.error_code, case when new.settled_by in ('read', 'sweep') then new.settled_by end, new.output_check,
    coalesce(new.finished_at, case when new.run_at > new.created_at then new.run_at else new.created_at end));
end;

create trigger uncommon_jobs_changed after update of status, created_by, error_code, settled_by, output_check on jobs begin
  delete from uncommon_jobs where id = old.id;
  insert into uncommon_jobs (id, owner, state, failure, missed_by, unfit, since)
  select new.id, new.created_by, new.status, new.error_code,
    case when new.settled_by in ('read', 'sweep') then new.settled_by end, new.output_check,
    coalesce(new.finished_at, case when new.run_at > new.created_at then new.run_at else new.created_at end)
  where new.status <> 'completed' or new.settled_by in ('read', 'sweep') or new.output_check is not null;
end;

create trigger uncommon_jobs_removed after delete on jobs begin
  delete from uncommon_jobs where id = old.id;
end;

-- One small row for each job that the runtime is asked about: a lease or a check never rewrites the job's documents.
create table job_checks (
  job_id text primary key,
  -- Empty for a job without an owner. Due jobs are taken in turn by owner.
  owner text not null,
  -- The job's type, if the type limits how many of its runs are active.
  limited_type text,
  -- Since when the job waits for a place among the active runs of its type; null when it does not wait.
  queued_at bigint,
  -- The thread on which the job waits for its turn, behind unfinished jobs; null when it does not wait.
  waits_on text,
  -- The calendar's time before which its turn does not begin; null: at any time.
  not_before bigint,
  due_at bigint not null,
  -- When the owner of a paused job is reminded, or its question expires, whether or not the runtime answers; null: never.
  question_at bigint,
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
  -- Why the last check failed.
  last_error text
) without rowid;

create index job_checks_due on job_checks (due_at);
create index job_checks_by_owner on job_checks (owner, due_at);
create index job_checks_questions on job_checks (question_at) where question_at is not null;
-- The jobs that have a place among the active runs of their type, and those that wait for one.
create index job_checks_active on job_checks (limited_type, owner) where limited_type is not null and queued_at is null;
create index job_checks_queued on job_checks (limited_type, owner, queued_at) where queued_at is not null;
-- The turns that wait, in their order on each thread.
create index job_checks_waiting on job_checks (waits_on, job_id) where waits_on is not null and not_before is null;
create index job_checks_delayed on job_checks (not_before) where not_before is not null;

-- Every run a job ever had, so that a late callback of an earlier run is recognized.
create table job_runs (
  run_id text primary key,
  job_id text not null references jobs (id),
  run_seq integer not null,
  -- 1 for a further run of the same number: its start was repeated, and both starts took effect. It is never followed.
  is_extra smallint not null,
  -- 1 for a run on a thread that the conversation has left since. No turn continues from it.
  is_left smallint not null default 0,
  created_at bigint not null,
  answered_at bigint,
  -- The questions with which the run paused: a JSON list. Null: it did not pause, or its documents were erased.
  questions text,
  -- The answers that a client of this service gave, by the ids of the questions: a JSON object. Null: none.
  answers text
);

create index job_runs_by_job on job_runs (job_id);

-- Every callback that was received. It is an entry of its job's timeline.
create table callbacks (
  id text primary key,
  path text not null,
  type text not null,
  job_id text not null,
  thread_id text not null,
  run_id text not null,
  status text not null,
  outcome text not null,
  received_at bigint not null,
  -- The transition that the callback caused, as JSON: it is another entry of the timeline, without a row of its own.
  transition text,
  body text not null
);

-- The callbacks of a type are found by its jobs, or among the newest.
create index callbacks_by_job on callbacks (job_id, id);
-- The common outcomes are found among the newest callbacks.
create index callbacks_by_outcome on callbacks (outcome, id) where outcome in ('duplicate', 'stale', 'adopted');

-- Callbacks that were refused, counted by minute, reason, path and address. Nothing of a body or a credential is stored. At
-- most 1,000 rows are kept, for a week.
create table refused_callbacks (
  -- The minute, and a hash of the kind.
  id text primary key,
  reason text not null,
  path text not null,
  address text not null,
  -- The newest job that they named, if it was one of ours.
  job_id text,
  count bigint not null,
  first_at bigint not null,
  last_at bigint not null
);

-- What happened to a job, in order. Checks in a row with the same result share one entry, which counts them.
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

-- The ids of deleted jobs and of their runs, kept for a month: a late callback must not create a new job for them.
create table job_tombstones (
  id text primary key,
  job_id text not null,
  deleted_at bigint not null
);

create index job_tombstones_by_age on job_tombstones (deleted_at);

-- How runs named their users to the runtime so far. Threads keep the names that they began with.
create table runtime_identities (
  id text primary key,
  noted_at bigint not null
);

-- usage/ ----------------------------------------------------------------------

-- What the ended jobs of a caller used in a month, by type. A start locks the row of the empty type while it checks the
-- limit. The empty subject has the sums of all erased users.
create table usage_counters (
  subject text not null,
  -- `2026-01`, in UTC.
  period text not null,
  type text not null,
  runs bigint not null,
  input_tokens bigint not null,
  output_tokens bigint not null,
  total_tokens bigint not null,
  primary key (subject, period, type)
);

-- The limits per month that an admin set for a caller. Null, or no row: the service's default.
create table usage_limits (
  subject text primary key,
  runs bigint,
  tokens bigint
);

-- The callers with a limit, by month. A change of their usage or of their limits locks the row.
create table usage_thresholds (
  subject text not null,
  -- `2026-01`, in UTC.
  period text not null,
  -- The highest percentage whose event was written; 0: none.
  reached bigint not null,
  primary key (subject, period)
);

-- events/ ---------------------------------------------------------------------

-- The log that clients stream. There is one writer at a time, so events appear in the order of their numbers.
-- Numbers follow time, so there is no index by age.
create table events (
  seq integer primary key autoincrement,
  -- The user whose stream gets it. Null: only admins get it.
  subject text,
  job_id text,
  type text not null,
  -- The same change never makes a second event. The events of a job are found by it: it begins with the job's id.
  cause text not null unique,
  data text not null,
  created_at bigint not null
);

create index events_by_subject on events (subject, seq);

-- One row: up to which number the log was trimmed.
create table event_log (
  id integer primary key,
  trimmed_seq bigint not null
);

insert into event_log (id, trimmed_seq) values (1, 0);

-- push/ -----------------------------------------------------------------------

-- The devices of users that a push provider reaches. A token belongs to one device.
create table devices (
  id text primary key,
  subject text not null,
  token text not null,
  -- A token may be longer than an index of PostgreSQL allows.
  token_hash text not null unique,
  platform text not null,
  -- The push provider that reaches the device.
  provider text not null,
  created_at bigint not null,
  last_seen_at bigint not null,
  -- Since when the provider reports the device as dead without being trusted; null when it does not.
  called_dead_at bigint,
  disabled_at bigint,
  disabled_reason text
);

create index devices_by_subject on devices (subject, id);

-- A text for users, once per cause.
create table notifications (
  id text primary key,
  -- The notifications of a job are found by it: it begins with the job's id.
  cause text not null unique,
  job_id text,
  title text not null,
  body text not null,
  data text not null,
  link text,
  priority text not null,
  ttl_seconds integer not null,
  dry_run smallint not null,
  -- The admin who sent it. Null for one that the service wrote, and once the admin was erased.
  created_by text,
  created_at bigint not null,
  -- The trace of its cause, as a W3C `traceparent`: for the spans of its deliveries.
  trace_context text
);

-- The notifications that a user sent, for the erasure.
create index notifications_by_sender on notifications (created_by) where created_by is not null;

-- The users to whom a notification without a job is addressed. The erasure of a user finds the notification here, also
-- when its devices were deleted. A notification of a job is found by the job, so it has no row here.
create table notification_recipients (
  notification_id text not null references notifications (id) on delete cascade,
  subject text not null,
  primary key (notification_id, subject)
);

create index notification_recipients_by_subject on notification_recipients (subject, notification_id);

-- One push of a notification to one device, committed with the cause. The outbox leases, sends and marks it.
-- The rows are small and are found by their key: without row ids, the table is the index of its key.
create table deliveries (
  notification_id text not null references notifications (id),
  device_id text not null,
  state text not null,
  attempts integer not null,
  -- Null when no attempt is left.
  next_attempt_at bigint,
  lease_token text,
  -- The lease ends at `lease_until`, or earlier if this node stops.
  lease_node text,
  lease_until bigint,
  -- Since when the provider does not accept it, not counting times in which no attempt was possible.
  retrying_since bigint,
  provider_message_id text,
  last_error text,
  created_at bigint not null,
  updated_at bigint not null,
  primary key (notification_id, device_id)
) without rowid;

create index deliveries_due on deliveries (next_attempt_at) where next_attempt_at is not null;
create index deliveries_by_device on deliveries (device_id, notification_id);
create index deliveries_parked on deliveries (notification_id) where state = 'no_credentials';
-- Every delivery is pending and then sent. Those two states are found among the newest deliveries.
create index deliveries_by_rare_state on deliveries (state, notification_id, device_id)
  where state not in ('sent', 'pending');
-- For the statistics.
create index deliveries_by_change on deliveries (updated_at) where state <> 'pending';

-- webhooks/ -------------------------------------------------------------------

-- The backends that get events.
create table webhook_endpoints (
  id text primary key,
  url text not null,
  description text,
  -- The types of the events that it gets: a JSON list.
  event_types text not null,
  -- The types of the jobs whose events it gets: a JSON list. Null: all.
  types text,
  project_id text,
  -- Readable, because a signature is made with it.
  secret text not null,
  -- The secret before the last rotation, and until when it signs too.
  old_secret text,
  old_secret_until bigint,
  -- It gets the events after this position of the log.
  after_seq bigint not null,
  -- How many positions of the log were deleted before they were read for it.
  missed bigint not null,
  -- Since when every attempt has failed; null after a success.
  failing_since bigint,
  disabled_at bigint,
  disabled_reason text,
  -- Null once the user was erased.
  created_by text,
  -- Increases with each change: the `ETag`.
  version bigint not null,
  created_at bigint not null,
  updated_at bigint not null
);

-- One event for one endpoint, written from the log of events. It is sent like a push.
-- The event is read when it is sent: a deleted event is not sent any more.
create table webhook_deliveries (
  event_seq bigint not null,
  endpoint_id text not null,
  event_type text not null,
  state text not null,
  attempts integer not null,
  -- Null when no attempt is left.
  next_attempt_at bigint,
  lease_token text,
  -- The lease ends at `lease_until`, or earlier if this node stops.
  lease_node text,
  lease_until bigint,
  last_error text,
  -- The last attempts with their status, duration and the beginning of the answer: a JSON list.
  attempt_log text not null,
  created_at bigint not null,
  updated_at bigint not null,
  primary key (event_seq, endpoint_id)
);

create index webhook_deliveries_by_endpoint on webhook_deliveries (endpoint_id, event_seq);
create index webhook_deliveries_due on webhook_deliveries (endpoint_id, next_attempt_at)
  where next_attempt_at is not null;
create index webhook_deliveries_by_rare_state on webhook_deliveries (endpoint_id, state, event_seq)
  where state not in ('sent', 'pending');

-- One row: up to which position of the log deliveries were written.
create table webhook_cursor (
  id integer primary key,
  position bigint not null
);

insert into webhook_cursor (id, position) values (1, 0);

-- audit/ ----------------------------------------------------------------------

-- What admins and the command line changed. An entry commits with the change that it describes.
create table audit (
  id text primary key,
  at bigint not null,
  actor_kind text not null,
  actor_id text not null,
  action text not null,
  object_kind text not null,
  object_id text not null,
  -- The changed fields, as JSON.
  before text,
  after text,
  address text,
  request_id text,
  -- The bulk operation whose item this change was; null for every other change.
  operation_id text
);

create index audit_by_actor on audit (actor_id, id);
create index audit_by_action on audit (action, id);
create index audit_by_object on audit (object_id, id);
create index audit_by_operation on audit (operation_id, id) where operation_id is not null;
-- The trail with one line for each bulk operation.
create index audit_without_items on audit (id) where operation_id is null;

-- http/ -----------------------------------------------------------------------

-- The answers to requests with an `Idempotency-Key`, for a repetition of the request.
create table idempotency_keys (
  principal text not null,
  idempotency_key text not null,
  -- The hash of the request: another request with the same key is refused.
  fingerprint text not null,
  status integer not null,
  location text not null,
  body text not null,
  expires_at bigint not null,
  primary key (principal, idempotency_key)
);

create index idempotency_keys_by_expiry on idempotency_keys (expires_at);
-- The answers that contain a deleted record.
create index idempotency_keys_by_location on idempotency_keys (location);

-- db/ -------------------------------------------------------------------------

-- The running nodes, each with a heartbeat. The leases of a node are free when its heartbeat stops.
create table nodes (
  id text primary key,
  started_at bigint not null,
  expires_at bigint not null,
  -- Higher than that of every node that joined before.
  joined bigint not null default 0
);

-- One row: the last step of the database's clock. The service's own time goes on without it.
create table service_clock (
  id integer primary key,
  -- Increases with each step. The node that is first to increase it has noted the step for all nodes.
  version bigint not null,
  -- The service's time minus the database's, right after the step. From then on it returns to 0 slowly.
  offset_ms bigint not null,
  -- The same of the time by which credentials expire. It is 0 again once the step has lasted for a minute.
  calendar_offset_ms bigint not null,
  -- The database's time right after the step.
  stepped_at bigint not null,
  -- The service's time when a node last stopped. The next start does not go back behind it.
  ran_until bigint not null
);

insert into service_clock (id, version, offset_ms, calendar_offset_ms, stepped_at, ran_until) values (1, 0, 0, 0, 0, 0);
