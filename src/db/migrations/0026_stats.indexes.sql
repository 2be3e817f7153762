create index if not exists deliveries_by_change on deliveries (updated_at) where state <> 'pending';
