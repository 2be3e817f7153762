-- One index for each filter of the lists for operators. The common outcomes of callbacks and the common state of deliveries
-- are left out: they are found among the newest rows.
create index if not exists callbacks_by_outcome on callbacks (outcome, id) where outcome in ('duplicate', 'stale', 'adopted');
create index if not exists callbacks_by_type on callbacks (type, id);
create index if not exists deliveries_by_state on deliveries (state, notification_id, device_id) where state <> 'sent';
create index if not exists deliveries_by_device on deliveries (device_id, notification_id);
