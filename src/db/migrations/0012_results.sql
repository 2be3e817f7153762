-- What first said that the current run has ended. It becomes `settled_by`, also when a later check confirms it.
alter table jobs add column first_hint text;

-- A finding that fails the job only when it is seen a second time: which one, and when it was seen first.
alter table jobs add column doubt_code text;
alter table jobs add column doubt_at bigint;

-- Fingerprints of the questions that `resume_input` answers, as a JSON list.
alter table jobs add column resume_questions text;
