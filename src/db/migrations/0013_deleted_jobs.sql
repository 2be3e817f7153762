-- The ids of deleted jobs and of their runs, kept for a month: a late callback must not make a new job of them.
create table job_tombstones (
  id text primary key,
  job_id text not null,
  deleted_at bigint not null
);

create index job_tombstones_by_age on job_tombstones (deleted_at);
