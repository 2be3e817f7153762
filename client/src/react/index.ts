export { type StartState, useEvents, useJob, useJobs, useLive, useStartJob } from './hooks.ts'
export type { JobState, JobsState, LiveState } from './stores.ts'
