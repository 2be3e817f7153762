-- The erasure that runs for a user. While it runs, the user is refused like a blocked one.
alter table user_states add column erasing text;

-- When the documents of a job were erased with its owner.
alter table jobs add column erased_at bigint;

-- An operation that waits for something is not taken before this time.
alter table operations add column due_at bigint;

-- `created_by` is null once the user was erased. SQLite cannot drop a `not null`, so a new column takes its place.
drop index projects_by_creator;
alter table projects rename column created_by to former_created_by;
alter table projects add column created_by text;
update projects set created_by = former_created_by;
alter table projects drop column former_created_by;
create index projects_by_creator on projects (created_by, id);

alter table service_accounts rename column created_by to former_created_by;
alter table service_accounts add column created_by text;
update service_accounts set created_by = former_created_by;
alter table service_accounts drop column former_created_by;
