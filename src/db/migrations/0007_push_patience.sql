-- Since when the provider calls the device dead without being believed; null when it does not.
alter table devices add column called_dead_at bigint;

-- Since when the provider fails to take it, times in which nothing could be tried left out; null when it does not.
alter table deliveries add column retrying_since bigint;
