-- How many jobs have not ended, and since when: a scrape asks often, and without this it would read every job there is.
create index jobs_unfinished on jobs (status, created_at) where finished_at is null;
