-- Earlier notifications, as far as their devices are still known. It is a migration of its own: the one before keeps
-- `notifications` locked until it ends.
insert into notification_recipients (notification_id, subject)
select distinct n.id, v.subject from notifications n
join deliveries d on d.notification_id = n.id
join devices v on v.id = d.device_id
where n.job_id is null
on conflict (notification_id, subject) do nothing;
