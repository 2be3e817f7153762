-- What lists filter by, for the jobs that did not simply complete: unfinished, failed, cancelled, or without a callback.
-- No index of `jobs` then names a column that a settlement changes, so PostgreSQL updates a job in place (HOT), and the
-- common end of a job costs one deletion here.
create table uncommon_jobs (
  id text primary key,
  owner text,
  state text not null,
  failure text,
  missed_by text
);

create index uncommon_jobs_by_status on uncommon_jobs (state, id);
create index uncommon_jobs_by_owner on uncommon_jobs (owner, state, id);
create index uncommon_jobs_by_error on uncommon_jobs (failure, id) where failure is not null;
create index uncommon_jobs_by_missed_callback on uncommon_jobs (missed_by, id) where missed_by is not null;

-- A trigger, so that also nodes of the release before keep the table right while both run.
create function track_uncommon_job() returns trigger language plpgsql as $$
begin
  if tg_op <> 'INSERT' then
    delete from uncommon_jobs where id = old.id;
  end if;
  if tg_op <> 'DELETE' and (new.status <> 'completed' or new.settled_by in ('read', 'sweep')) then
    insert into uncommon_jobs (id, owner, state, failure, missed_by) values (new.id, new.created_by, new.status,
      new.error_code, case when new.settled_by in ('read', 'sweep') then new.settled_by end);
  end if;
  return null;
end $$;

create trigger uncommon_jobs_tracked
after insert or delete or update of status, created_by, error_code, settled_by on jobs
for each row execute function track_uncommon_job();

-- After the trigger: creating it waits for open transactions and holds off new writes until this migration commits, so
-- that no change falls between the two.
insert into uncommon_jobs (id, owner, state, failure, missed_by)
select id, created_by, status, error_code, case when settled_by in ('read', 'sweep') then settled_by end
from jobs where status <> 'completed' or settled_by in ('read', 'sweep');

drop index if exists jobs_by_status;
drop index if exists jobs_by_owner_and_status;
drop index if exists jobs_by_error;
drop index if exists jobs_by_missed_callback;
drop index jobs_unfinished;
drop index jobs_unfinished_by_owner;
-- `jobs_by_conversation` serves threads.
drop index jobs_by_thread;

-- Room for the new version of a job on the page of the old one.
alter table jobs set (fillfactor = 50);

-- Numbers give the age of events. The events and notifications of a job are found by `cause`, which begins with its id.
drop index events_by_age;
drop index events_by_job;
drop index notifications_by_job;

-- The entries of a job are read by (job_id, id) only.
alter table job_timeline drop constraint job_timeline_pkey;

-- Each check of a foreign key is a query and a logged row lock. These rows are written in one transaction with the row
-- that they refer to, and deleted before it.
alter table job_timeline drop constraint job_timeline_job_id_fkey;
alter table usage_records drop constraint usage_records_job_id_fkey;
alter table deliveries drop constraint deliveries_notification_id_fkey;
