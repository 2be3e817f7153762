-- The kept answers that quote a deleted job.
create index if not exists idempotency_keys_by_location on idempotency_keys (location);
