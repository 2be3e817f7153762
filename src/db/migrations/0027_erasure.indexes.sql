-- The notifications that a user sent.
create index if not exists notifications_by_sender on notifications (created_by) where created_by is not null;
