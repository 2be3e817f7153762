-- Times are epoch milliseconds, flags 0 or 1, documents JSON text: what both engines hold alike.

create table projects (
  id text primary key,
  name text not null,
  description text,
  metadata text not null,
  created_by text not null,
  version bigint not null,
  created_at bigint not null,
  updated_at bigint not null
);

create table users (
  sub text primary key,
  email text,
  display_name text,
  avatar_url text,
  locale text,
  time_zone text,
  push_enabled smallint not null,
  version bigint not null,
  created_at bigint not null,
  updated_at bigint not null,
  last_seen_at bigint not null
);

create index users_by_age on users (created_at, sub);

create table service_accounts (
  id text primary key,
  name text not null,
  scopes text not null,
  created_by text not null,
  created_at bigint not null,
  expires_at bigint,
  revoked_at bigint,
  last_used_at bigint
);

-- More than one live key per account only during the grace of a rotation. The key itself is never stored.
create table service_keys (
  id text primary key,
  account_id text not null references service_accounts (id),
  hash text not null unique,
  hint text not null,
  created_at bigint not null,
  expires_at bigint,
  revoked_at bigint
);

create index service_keys_by_account on service_keys (account_id);

create table idempotency_keys (
  principal text not null,
  idempotency_key text not null,
  fingerprint text not null,
  status integer not null,
  location text not null,
  body text not null,
  expires_at bigint not null,
  primary key (principal, idempotency_key)
);

create index idempotency_keys_by_expiry on idempotency_keys (expires_at);
