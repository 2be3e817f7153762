-- Users by the beginning of their e-mail address. The primary key serves the beginning of a sub.
create index if not exists users_by_email on users (lower(email), sub) where email is not null;
