-- The tokens that a job used. `usage_records` keeps those of jobs that ended in earlier releases.
alter table jobs add column input_tokens bigint;
alter table jobs add column output_tokens bigint;
alter table jobs add column total_tokens bigint;

-- The transition that a callback caused, which is an entry of the timeline. It had a row of its own.
alter table callbacks add column transition text;
