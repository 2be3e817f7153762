create table devices (
  id text primary key,
  subject text not null,
  token text not null,
  -- A token may be longer than an index of PostgreSQL takes.
  token_hash text not null unique,
  platform text not null,
  created_at bigint not null,
  last_seen_at bigint not null,
  disabled_at bigint,
  disabled_reason text
);

create index devices_by_subject on devices (subject, id);

-- What is to be told, once per cause.
create table notifications (
  id text primary key,
  cause text not null unique,
  job_id text,
  title text not null,
  body text not null,
  data text not null,
  link text,
  priority text not null,
  ttl_seconds integer not null,
  dry_run smallint not null,
  created_by text,
  created_at bigint not null
);

create index notifications_by_job on notifications (job_id);

-- To whom: one row per notification and device, committed with its cause; the worker leases, sends and marks.
create table deliveries (
  notification_id text not null references notifications (id),
  device_id text not null,
  state text not null,
  attempts integer not null,
  next_attempt_at bigint,
  lease_token text,
  lease_until bigint,
  provider_message_id text,
  last_error text,
  created_at bigint not null,
  updated_at bigint not null,
  primary key (notification_id, device_id)
);

create index deliveries_due on deliveries (next_attempt_at) where next_attempt_at is not null;
create index deliveries_shelved on deliveries (notification_id) where state = 'no_credentials';
