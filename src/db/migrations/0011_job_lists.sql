-- The job that this one repeats, and the job whose conversation this one continues.
alter table jobs add column retry_of text;
alter table jobs add column continues text;
