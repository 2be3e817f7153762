alter table jobs rename column doubt_code to awaiting_confirmation;
alter table jobs rename column doubt_at to awaiting_confirmation_since;
