import type { Database, Row } from '../../../src/db/database.ts'
import { sql } from '../../../src/db/sql.ts'

const FINAL = `('completed', 'failed', 'cancelled')`

/**
 * Triggers that write down every move of every job, in the transaction that makes it and with the devices its owner had
 * at that moment, and every device, since one that is removed takes its token with it. What was rolled back leaves no trace
 * here either.
 * On the columns they watch alone: a lease, taken every second, must not pay for them.
 */
export const WITNESS = `
create table sim_moves (
  n integer primary key autoincrement, job_id text not null, old text, new text not null, run_seq integer not null,
  owner text, wants_push integer not null, devices text);
create table sim_thaws (n integer primary key autoincrement, job_id text not null, what text not null);
create table sim_trespasses (n integer primary key autoincrement, job_id text not null);
create table sim_devices (id text primary key, token text not null);

create trigger sim_device_made after insert on devices begin
  insert into sim_devices (id, token) values (new.id, new.token);
end;
create trigger sim_job_made after insert on jobs begin
  insert into sim_moves (job_id, old, new, run_seq, owner, wants_push, devices)
  values (new.id, null, new.status, new.run_seq, new.created_by, 0, null);
end;
create trigger sim_job_moved after update of status on jobs when old.status <> new.status begin
  insert into sim_moves (job_id, old, new, run_seq, owner, wants_push, devices)
  values (new.id, old.status, new.status, new.run_seq, new.created_by,
    coalesce((select push_enabled from users where sub = new.created_by), 1),
    (select group_concat(id, ',') from (
      select id from devices where subject = new.created_by and disabled_at is null order by id)));
end;
create trigger sim_job_thawed after update of status, output, error_code, error_message, run_id, finished_at, settled_by
  on jobs when old.status in ${FINAL} and (
    new.status is not old.status or new.output is not old.output or new.error_code is not old.error_code
    or new.error_message is not old.error_message or new.run_id is not old.run_id
    or new.finished_at is not old.finished_at or new.settled_by is not old.settled_by) begin
  insert into sim_thaws (job_id, what) values (new.id, old.status || ' became ' || new.status);
end;
create trigger sim_job_trespassed after update of check_attempts on jobs
  when old.lease_token is null and new.check_attempts > old.check_attempts begin
  insert into sim_trespasses (job_id) values (new.id);
end;
create trigger sim_job_lost after delete on jobs begin
  insert into sim_thaws (job_id, what) values (old.id, 'deleted');
end;
create trigger sim_usage_lost after delete on usage_records begin
  insert into sim_thaws (job_id, what) values (old.job_id, 'usage deleted');
end;`

export type Move = {
  job_id: string
  old: string | null
  new: string
  run_seq: number
  owner: string | null
  wants_push: number
  devices: string | null
}

export function movesOf(store: Database): Promise<Move[]> {
  return store.query<Move>(sql`select job_id, old, new, run_seq, owner, wants_push, devices from sim_moves order by n`)
}

export function thawsOf(store: Database): Promise<(Row & { job_id: string; what: string })[]> {
  return store.query(sql`select job_id, what from sim_thaws order by n`)
}

/** Jobs whose look was concluded by somebody whose lease was over, and another's as well. */
export function trespassesOf(store: Database): Promise<(Row & { job_id: string })[]> {
  return store.query(sql`select job_id from sim_trespasses order by n`)
}
