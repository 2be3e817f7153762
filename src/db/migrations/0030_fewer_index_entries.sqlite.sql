-- The callbacks of a type are found by its jobs, or among the newest.
drop index if exists callbacks_by_type;

-- Every delivery is pending and then sent. The index of the other states is in the file beside this one.
drop index if exists deliveries_by_state;

-- The rows are small, and are found by their key: without row ids, the table is the index of its key.
alter table deliveries rename to former_deliveries;
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
  retrying_since bigint,
  lease_node text,
  primary key (notification_id, device_id)
) without rowid;
insert into deliveries (notification_id, device_id, state, attempts, next_attempt_at, lease_token, lease_until,
  provider_message_id, last_error, created_at, updated_at, retrying_since, lease_node)
select notification_id, device_id, state, attempts, next_attempt_at, lease_token, lease_until,
  provider_message_id, last_error, created_at, updated_at, retrying_since, lease_node from former_deliveries;
drop table former_deliveries;
create index deliveries_due on deliveries (next_attempt_at) where next_attempt_at is not null;
create index deliveries_shelved on deliveries (notification_id) where state = 'no_credentials';
create index deliveries_by_device on deliveries (device_id, notification_id);
create index deliveries_by_change on deliveries (updated_at) where state <> 'pending';
