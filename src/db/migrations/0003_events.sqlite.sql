-- The log behind the realtime streams. One writer at a time, so that the numbers appear in their order.
create table events (
  seq integer primary key autoincrement,
  subject text,
  job_id text,
  type text not null,
  cause text not null unique,
  data text not null,
  created_at bigint not null
);

create index events_by_subject on events (subject, seq);
create index events_by_job on events (job_id, seq);
create index events_by_age on events (created_at);

-- One row: how far the log was trimmed.
create table event_log (
  id integer primary key,
  trimmed_seq bigint not null
);

insert into event_log (id, trimmed_seq) values (1, 0);
