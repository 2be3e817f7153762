-- What happened in each bucket of time, counted outside of the transactions that caused it. The index of this version is in
-- the file beside this one.
create table stats (
  -- The length of the bucket.
  seconds bigint not null,
  bucket_at bigint not null,
  name text not null,
  count bigint not null,
  primary key (seconds, bucket_at, name)
);

-- How far each source has been counted. It is written in the transaction of the counts.
create table stats_cursors (
  source text primary key,
  position bigint not null
);
