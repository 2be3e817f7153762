-- What every node must know of a user within seconds: blocked, or erased. Subs that never signed in may be here too.
create table user_states (
  sub text primary key,
  blocked_at bigint,
  erased_at bigint,
  -- Increases with each change, so that a node reads only what changed since its last read.
  version bigint not null
);

create index user_states_by_version on user_states (version);

-- One row: the last version given out. Its lock lets versions appear in their order.
create table user_state_version (
  id integer primary key,
  version bigint not null
);

insert into user_state_version (id, version) values (1, 0);
