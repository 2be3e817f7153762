-- The users to whom a notification without a job is addressed. The erasure of a user finds the notification here, also when
-- its devices were deleted. A notification of a job is found by the job, so it has no row here.
create table notification_recipients (
  notification_id text not null references notifications (id) on delete cascade,
  subject text not null,
  primary key (notification_id, subject)
);

create index notification_recipients_by_subject on notification_recipients (subject, notification_id);
