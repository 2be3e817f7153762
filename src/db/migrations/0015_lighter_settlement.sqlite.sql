-- What lists filter by, for the jobs that did not simply complete: unfinished, failed, cancelled, or without a callback.
-- No index of `jobs` then names a column that a settlement changes.
create table uncommon_jobs (
  id text primary key,
  owner text,
  state text not null,
  failure text,
  missed_by text
) without rowid;

-- Two steps, each served by an index.
insert into uncommon_jobs (id, owner, state, failure, missed_by)
select id, created_by, status, error_code, case when settled_by in ('read', 'sweep') then settled_by end
from jobs where status <> 'completed';

insert into uncommon_jobs (id, owner, state, failure, missed_by)
select id, created_by, status, error_code, settled_by
from jobs indexed by jobs_by_missed_callback where settled_by in ('read', 'sweep') and status = 'completed';

create index uncommon_jobs_by_status on uncommon_jobs (state, id);
create index uncommon_jobs_by_owner on uncommon_jobs (owner, state, id);
create index uncommon_jobs_by_error on uncommon_jobs (failure, id) where failure is not null;
create index uncommon_jobs_by_missed_callback on uncommon_jobs (missed_by, id) where missed_by is not null;

create trigger uncommon_jobs_added after insert on jobs
when new.status <> 'completed' or new.settled_by in ('read', 'sweep') begin
  insert into uncommon_jobs (id, owner, state, failure, missed_by) values (new.id, new.created_by, new.status,
    new.error_code, case when new.settled_by in ('read', 'sweep') then new.settled_by end);
end;

create trigger uncommon_jobs_changed after update of status, created_by, error_code, settled_by on jobs begin
  delete from uncommon_jobs where id = old.id;
  insert into uncommon_jobs (id, owner, state, failure, missed_by)
  select new.id, new.created_by, new.status, new.error_code,
    case when new.settled_by in ('read', 'sweep') then new.settled_by end
  where new.status <> 'completed' or new.settled_by in ('read', 'sweep');
end;

create trigger uncommon_jobs_removed after delete on jobs begin
  delete from uncommon_jobs where id = old.id;
end;

drop index jobs_by_status;
drop index jobs_by_owner_and_status;
drop index jobs_by_error;
drop index jobs_by_missed_callback;
drop index jobs_unfinished;
drop index jobs_unfinished_by_owner;
-- `jobs_by_conversation` serves threads.
drop index jobs_by_thread;

-- Numbers give the age of events. The events and notifications of a job are found by `cause`, which begins with its id.
drop index events_by_age;
drop index events_by_job;
drop index notifications_by_job;
