-- The table has no primary key, because nothing reads its rows one by one. Without a replica identity, PostgreSQL refuses
-- every delete from it while a publication for logical replication includes it.
alter table job_timeline replica identity full;
