-- The callbacks of a type are found by its jobs, or among the newest.
drop index if exists callbacks_by_type;

-- Every delivery is pending and then sent. The index of the other states is in the file beside this one.
drop index if exists deliveries_by_state;

-- Room for the new version of a row on the page of the old one: then no index gets an entry.
alter table jobs set (fillfactor = 45);
alter table usage_counters set (fillfactor = 50);
