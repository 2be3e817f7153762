-- The jobs of one user in one project. The end of a job changes none of these columns, so it adds no entry.
create index if not exists jobs_by_owner_and_project on jobs (created_by, project_id, id) where project_id is not null;

-- The failed items of an operation, in their order.
create index if not exists operation_items_failed on operation_items (operation_id, place) where error is not null;
