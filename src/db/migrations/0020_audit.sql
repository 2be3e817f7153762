-- What admins and the command line changed. A row commits with the change that it describes.
create table audit (
  id text primary key,
  at bigint not null,
  actor_kind text not null,
  actor_id text not null,
  action text not null,
  object_kind text not null,
  object_id text not null,
  before text,
  after text,
  address text,
  request_id text
);

create index audit_by_actor on audit (actor_id, id);
create index audit_by_action on audit (action, id);
create index audit_by_object on audit (object_id, id);
