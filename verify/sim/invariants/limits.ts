import { sql } from '../../../src/db/sql.ts'
import { ERASED_USER } from '../clients/operator-scenario.ts'
import { FINAL_STATUSES } from '../expected-statuses.ts'
import { subOf } from '../outside/identity.ts'
import type { Evidence } from './evidence.ts'

const FINAL = `(${FINAL_STATUSES.map((status) => `'${status}'`).join(', ')})`

/** Notes the thresholds that the usage of a subject has reached in a period. */
const noteReached = (subject: string, period: string) => `
  insert into sim_reached (subject, period, threshold)
  select limits.subject, ${period}, threshold
  from usage_limits limits, (select 80 as threshold union all select 100) as thresholds, (
    select coalesce(sum(runs), 0) as runs, coalesce(sum(total_tokens), 0) as tokens from usage_counters
    where subject = ${subject} and period = ${period}) as used
  where limits.subject = ${subject}
    and (used.runs * 100 >= limits.runs * threshold or used.tokens * 100 >= limits.tokens * threshold);`

const monthOf = (column: string) => `strftime('%Y-%m', ${column} / 1000, 'unixepoch')`
const IS_COUNTED = `subject = new.created_by and period = ${monthOf('new.created_at')}`

/** Triggers that note when usage reaches a threshold, and each job that is accepted beyond the limits of its owner. */
export const LIMIT_TRIGGERS = `
create table sim_reached (subject text not null, period text not null, threshold integer not null);
create table sim_beyond_limits (job_id text not null);
create trigger sim_usage_began after insert on usage_counters when new.type <> '' and new.runs > 0 begin
  ${noteReached('new.subject', 'new.period')}
end;
create trigger sim_usage_grew after update on usage_counters when new.type <> '' and new.runs > old.runs begin
  ${noteReached('new.subject', 'new.period')}
end;
create trigger sim_limits_audited after insert on audit when new.action = 'user.limits_changed' begin
  ${noteReached('new.object_id', monthOf('new.at'))}
end;
create trigger sim_limits_set after insert on usage_limits begin
  insert into sim_audited_changes (action, object_id) values ('user.limits_changed', new.subject);
end;
create trigger sim_limits_changed after update on usage_limits begin
  insert into sim_audited_changes (action, object_id) values ('user.limits_changed', new.subject);
end;
create trigger sim_limits_removed after delete on usage_limits
  when not exists (select 1 from user_states where sub = old.subject and erasing is not null) begin
  insert into sim_audited_changes (action, object_id) values ('user.limits_changed', old.subject);
end;
create trigger sim_job_beyond_limits after insert on jobs when exists (
    select 1 from usage_limits limits where subject = new.created_by and (
      limits.tokens <= (select coalesce(sum(total_tokens), 0) from usage_counters where ${IS_COUNTED})
      or limits.runs < (select coalesce(sum(runs), 0) from usage_counters where ${IS_COUNTED})
        + (select count(*) from jobs where created_by = new.created_by and status not in ${FINAL}))) begin
  insert into sim_beyond_limits (job_id) values (new.id);
end;`

/** No job is accepted beyond the limits of its owner, and each threshold is announced exactly once per owner and month. */
export async function checkLimits({ store, violate }: Evidence): Promise<void> {
  const beyond = await store.query<{ job_id: string }>(sql`select job_id from sim_beyond_limits`)
  for (const { job_id } of beyond) violate('limits', `${job_id} was accepted beyond the limits of its owner`)
  const erased = subOf(ERASED_USER)
  const reached = await store.query<{ threshold: string }>(sql`
    select distinct subject || ' ' || period || ' ' || threshold as threshold from sim_reached
    where subject <> ${erased} order by 1`)
  const announced = await store.query<{ threshold: string }>(sql`
    select subject || ' ' || (data ->> '$.period') || ' ' || (data ->> '$.threshold') as threshold from events
    where type = 'usage.threshold' and subject <> ${erased} order by 1`)
  const [wanted, found] = [reached, announced].map((rows) => rows.map(({ threshold }) => threshold).join())
  if (wanted !== found) violate('limits', `reached were [${wanted}], announced were [${found}]`)
}
