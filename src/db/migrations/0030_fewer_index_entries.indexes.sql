create index if not exists deliveries_by_rare_state on deliveries (state, notification_id, device_id)
  where state not in ('sent', 'pending');
