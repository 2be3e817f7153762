-- The erasure that runs for a user. While it runs, the user is refused like a blocked one.
alter table user_states add column erasing text;

-- When the documents of a job were erased with its owner.
alter table jobs add column erased_at bigint;

-- An operation that waits for something is not taken before this time.
alter table operations add column due_at bigint;

-- Null once the user was erased.
alter table projects alter column created_by drop not null;
alter table service_accounts alter column created_by drop not null;
