-- The projects that a user created, for the export of all data of a user.
create index if not exists projects_by_creator on projects (created_by, id);
