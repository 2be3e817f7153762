-- The push provider that reaches the device.
alter table devices add column provider text not null default 'fcm';
