-- Users by the beginning of their e-mail address or sub. Only in the collation "C" do texts with the same beginning sort
-- next to each other.
create index if not exists users_by_email on users ((lower(email) collate "C"), (sub collate "C")) where email is not null;
create index if not exists users_by_sub on users ((sub collate "C"));
