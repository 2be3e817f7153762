-- Where the trace of the request that started the job goes on, as a W3C `traceparent`; null when nothing was traced.
alter table jobs add column trace_context text;

-- The same of the settlement that a notification is about, for the spans of its deliveries.
alter table notifications add column trace_context text;
