export { ApiClient, type ClientOptions, createClient, type EventsOptions } from './client.ts'
export { ApiError, type ErrorCode, JobAwaitingInput, JobCancelled, JobFailed, NotProjectApi } from './errors.ts'
export type { Clock } from './http/clock.ts'
export type { RequestOptions } from './http/connection.ts'
export type { TokenProvider } from './http/credentials.ts'
export { JobHandle, type ResultOptions, type RetryOptions } from './jobs/job-handle.ts'
export type { AnswerOptions, ContinueOptions, StartOptions } from './jobs/job-requests.ts'
export type { LiveMessage, LiveOptions, LivePart } from './jobs/live.ts'
export {
  addLivePart,
  EMPTY_TRANSCRIPT,
  type LiveTranscript,
  type ToolCall,
  type TranscriptMessage,
} from './jobs/live-transcript.ts'
export type { CallOptions, List, ListOptions, Page } from './resources/pages.ts'
export type * from './types.ts'
