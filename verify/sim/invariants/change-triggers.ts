import type { Database, Row } from '../../../src/db/database.ts'
import { sql } from '../../../src/db/sql.ts'
import type { JobStatus } from '../../../src/jobs/job.ts'
import { ERASED_USER, OPERATED_USER } from '../clients/operator-scenario.ts'
import { FINAL_STATUSES } from '../expected-statuses.ts'
import { subOf } from '../outside/identity.ts'

const OPERATED_SUB = subOf(OPERATED_USER)
const ERASED_SUB = subOf(ERASED_USER)
const FINAL = `(${FINAL_STATUSES.map((status) => `'${status}'`).join(', ')})`

/**
 * Triggers that record every status transition of a job in the transaction that makes it, with the devices its owner has
 * then. They also record every device, because a removed device takes its token with it. A rollback removes the records too.
 * Each trigger names its columns, so that taking a lease, which happens every second, does not run them.
 */
export const CHANGE_TRIGGERS = `
create table sim_transitions (
  n integer primary key autoincrement, job_id text not null, old text, new text not null, run_seq integer not null,
  owner text, wants_push integer not null, devices text);
create table sim_late_changes (n integer primary key autoincrement, job_id text not null, what text not null);
create table sim_unleased_checks (n integer primary key autoincrement, job_id text not null);
create table sim_overlaps (n integer primary key autoincrement, job_id text not null);
create table sim_deleted_jobs (
  job_id text primary key, type text not null, status text not null, created_by text, finished_at integer);
create table sim_deleted_events (seq integer primary key);
create table sim_audited_changes (action text not null, object_id text not null);
create table sim_reminders (cause text not null, wants_push integer not null, devices text);
create table sim_devices (id text primary key, token text not null);

create trigger sim_device_made after insert on devices begin
  insert into sim_devices (id, token) values (new.id, new.token);
end;
create trigger sim_job_made after insert on jobs begin
  insert into sim_transitions (job_id, old, new, run_seq, owner, wants_push, devices)
  values (new.id, null, new.status, new.run_seq, new.created_by, 0, null);
end;
create trigger sim_turns_overlap after insert on job_runs when new.is_extra = 0 and exists (
    select 1 from jobs turn join jobs earlier on earlier.thread_id = turn.thread_id and earlier.id < turn.id
    where turn.id = new.job_id and turn.continues is not null and earlier.status not in ${FINAL}) begin
  insert into sim_overlaps (job_id) values (new.job_id);
end;
create trigger sim_job_changed after update of status on jobs when old.status <> new.status begin
  insert into sim_transitions (job_id, old, new, run_seq, owner, wants_push, devices)
  values (new.id, old.status, new.status, new.run_seq, new.created_by,
    coalesce((select push_enabled from users where sub = new.created_by), 1),
    (select group_concat(id, ',') from (
      select id from devices where subject = new.created_by and disabled_at is null order by id)));
end;
create trigger sim_reminded after insert on events when new.type = 'job.reminder' begin
  insert into sim_reminders (cause, wants_push, devices)
  values (new.cause, coalesce((select push_enabled from users where sub = new.subject), 1),
    (select group_concat(id, ',') from (
      select id from devices where subject = new.subject and disabled_at is null order by id)));
end;
create trigger sim_job_changed_late after update of status, output, error_code, error_message, run_id, finished_at, settled_by
  on jobs when old.status in ${FINAL} and new.erased_at is old.erased_at and (
    new.status is not old.status or new.output is not old.output or new.error_code is not old.error_code
    or new.error_message is not old.error_message or new.run_id is not old.run_id
    or new.finished_at is not old.finished_at or new.settled_by is not old.settled_by) begin
  insert into sim_late_changes (job_id, what) values (new.id, old.status || ' became ' || new.status);
end;
create trigger sim_job_checked_unleased after update of checks on job_checks
  when old.lease_id is null and new.checks > old.checks begin
  insert into sim_unleased_checks (job_id) values (new.job_id);
end;
create trigger sim_job_deleted after delete on jobs begin
  insert into sim_deleted_jobs (job_id, type, status, created_by, finished_at)
  values (old.id, old.type, old.status, old.created_by, old.finished_at);
  insert into sim_audited_changes (action, object_id) values ('job.deleted', old.id);
end;
create trigger sim_event_deleted after delete on events begin
  insert into sim_deleted_events (seq) values (old.seq);
end;
create trigger sim_user_blocked after insert on user_states when new.blocked_at is not null begin
  insert into sim_audited_changes (action, object_id) values ('user.blocked', new.sub);
end;
create trigger sim_user_block_changed after update of blocked_at on user_states
  when (old.blocked_at is null) <> (new.blocked_at is null) begin
  insert into sim_audited_changes (action, object_id)
  values (case when new.blocked_at is null then 'user.unblocked' else 'user.blocked' end, new.sub);
end;
create trigger sim_erasure_started after insert on user_states when new.erasing is not null begin
  insert into sim_audited_changes (action, object_id) values ('user.erasure_started', new.sub);
end;
create trigger sim_erasure_changed after update of erasing on user_states
  when (old.erasing is null) <> (new.erasing is null) begin
  insert into sim_audited_changes (action, object_id)
  values (case when new.erasing is null then 'user.erased' else 'user.erasure_started' end, new.sub);
end;
create trigger sim_operation_started after insert on operations when new.action not in ('erase', 'recover') begin
  insert into sim_audited_changes (action, object_id) values ('operation.started', new.id);
end;
-- A recovery ends by itself when its endpoint is disabled.
create trigger sim_operation_stopped after update of state on operations
  when new.state = 'cancelled' and old.state <> 'cancelled' and not exists (
    select 1 from operation_items where operation_id = new.id and error = 'The endpoint is disabled') begin
  insert into sim_audited_changes (action, object_id) values ('operation.cancelled', new.id);
end;
create trigger sim_job_repeated after insert on jobs when new.retry_of is not null begin
  insert into sim_audited_changes (action, object_id) values ('job.retried', new.retry_of);
end;
create trigger sim_job_cancelled_by_operator after update of cancel_requested_at on jobs
  when new.created_by in ('${OPERATED_SUB}', '${ERASED_SUB}') and old.cancel_requested_at is null and new.cancel_requested_at is not null
    -- The service itself cancels a waiting job beyond a limit. It notes the reason before.
    and not exists (select 1 from job_timeline where job_id = new.id and kind = 'cancel_requested'
      and detail ->> '$.reason' = 'usage_limit_exceeded') begin
  insert into sim_audited_changes (action, object_id) values ('job.cancelled', new.id);
end;
create view sim_audited_actions as
  select 'job.deleted' as action union all select 'job.retried' union all select 'job.cancelled'
  union all select 'user.blocked' union all select 'user.unblocked'
  union all select 'user.erasure_started' union all select 'user.erased'
  union all select 'user.limits_changed'
  union all select 'webhook_endpoint.created' union all select 'webhook_endpoint.changed'
  union all select 'webhook_endpoint.rotated'
  union all select 'operation.started' union all select 'operation.cancelled';`

export type Transition = {
  job_id: string
  old: JobStatus | null
  new: JobStatus
  run_seq: number
  owner: string | null
  wants_push: number
  devices: string | null
}

export function readTransitions(store: Database): Promise<Transition[]> {
  return store.query<Transition>(
    sql`select job_id, old, new, run_seq, owner, wants_push, devices from sim_transitions order by n`,
  )
}

export function readLateChanges(store: Database): Promise<(Row & { job_id: string; what: string })[]> {
  return store.query(sql`select job_id, what from sim_late_changes order by n`)
}

/** Jobs for which a worker stored the result of a check although no worker held the lease any more. */
export function readUnleasedChecks(store: Database): Promise<(Row & { job_id: string })[]> {
  return store.query(sql`select job_id from sim_unleased_checks order by n`)
}

/** Turns of a conversation that got a run while an earlier job on the thread was unfinished. */
export function readOverlappingTurns(store: Database): Promise<(Row & { job_id: string })[]> {
  return store.query(sql`select job_id from sim_overlaps order by n`)
}

export async function readDeletedJobs(store: Database): Promise<Set<string>> {
  const rows = await store.query<{ job_id: string }>(sql`select job_id from sim_deleted_jobs`)
  return new Set(rows.map(({ job_id }) => job_id))
}
