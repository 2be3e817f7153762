import type { Database, Row } from '../../../src/db/database.ts'
import { sql } from '../../../src/db/sql.ts'

const FINAL = `('completed', 'failed', 'cancelled')`

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
create table sim_devices (id text primary key, token text not null);

create trigger sim_device_made after insert on devices begin
  insert into sim_devices (id, token) values (new.id, new.token);
end;
create trigger sim_job_made after insert on jobs begin
  insert into sim_transitions (job_id, old, new, run_seq, owner, wants_push, devices)
  values (new.id, null, new.status, new.run_seq, new.created_by, 0, null);
end;
create trigger sim_job_changed after update of status on jobs when old.status <> new.status begin
  insert into sim_transitions (job_id, old, new, run_seq, owner, wants_push, devices)
  values (new.id, old.status, new.status, new.run_seq, new.created_by,
    coalesce((select push_enabled from users where sub = new.created_by), 1),
    (select group_concat(id, ',') from (
      select id from devices where subject = new.created_by and disabled_at is null order by id)));
end;
create trigger sim_job_changed_late after update of status, output, error_code, error_message, run_id, finished_at, settled_by
  on jobs when old.status in ${FINAL} and (
    new.status is not old.status or new.output is not old.output or new.error_code is not old.error_code
    or new.error_message is not old.error_message or new.run_id is not old.run_id
    or new.finished_at is not old.finished_at or new.settled_by is not old.settled_by) begin
  insert into sim_late_changes (job_id, what) values (new.id, old.status || ' became ' || new.status);
end;
create trigger sim_job_checked_unleased after update of check_attempts on jobs
  when old.lease_token is null and new.check_attempts > old.check_attempts begin
  insert into sim_unleased_checks (job_id) values (new.id);
end;
create trigger sim_job_lost after delete on jobs begin
  insert into sim_late_changes (job_id, what) values (old.id, 'deleted');
end;
create trigger sim_usage_lost after delete on usage_records begin
  insert into sim_late_changes (job_id, what) values (old.job_id, 'usage deleted');
end;`

export type Transition = {
  job_id: string
  old: string | null
  new: string
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
