-- Work on many records, done in the background. Its items are frozen when it is created.
create table operations (
  id text primary key,
  action text not null,
  state text not null,
  total bigint not null,
  -- The items up to this place have been worked off. It is written in the transaction of their effects.
  position bigint not null,
  failed bigint not null,
  created_by text not null,
  -- Who started it and from where, as JSON: the audit trail names it for each item.
  origin text not null,
  created_at bigint not null,
  finished_at bigint,
  lease_token text,
  -- The node that works on it. The lease ends when the node stops.
  lease_node text
);

create index operations_unfinished on operations (id) where finished_at is null;

create table operation_items (
  operation_id text not null,
  place bigint not null,
  object_id text not null,
  -- Why the item failed.
  error text,
  primary key (operation_id, place)
);
