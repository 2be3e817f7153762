/**
 * Why the runtime could not be asked about a run. Users only see these sentences, never an address or a message of a
 * library or of the runtime. `{status}` is the number of an HTTP status. Details are in the log.
 */
export const CHECK_ERRORS = {
  unreachable: 'the runtime cannot be reached',
  answered: 'the runtime answered {status}',
  web_page: 'the runtime answered {status} with a web page',
  unreadable: 'the runtime answered something that is too large or not UTF-8',
  not_json: 'the runtime answered something that is not JSON',
  not_a_run: 'the runtime answered something that is not a run',
  run_without_ids: 'the runtime answered a run without its ids or its status',
  not_a_state: 'the runtime answered something that is not a state',
  not_a_list: 'the runtime answered something that is not a list',
  not_a_stream: 'the runtime answered {status} instead of a stream',
  stream_broke: 'the stream of the run broke',
  threads_stay: 'the runtime still lists threads that it has deleted',
  too_many_threads: 'the runtime has too many threads of the user',
  too_many_runs: 'the thread has too many runs',
  malformed_id: 'the id of the run or thread is not a UUID',
  circuit_open: 'the runtime keeps failing; the next attempt is in a moment',
  not_answered_yet: 'the runtime has not answered yet',
  thread_busy: 'the thread is busy with another run',
  job_held: 'another worker holds this job, or it was cancelled',
  lease_too_short: 'the lease would not outlast the start',
  end_unconfirmed: 'the end of the run was reported, and the runtime has not confirmed it yet',
  answered_elsewhere: 'the question was answered elsewhere, without a run; resume the job with the input null',
  turn_pending: 'the runtime does not show the end of the run before yet',
  start_pending: 'the last start may still take effect',
  type_gone: 'the job type is not configured any more',
  not_configured: 'no runtime is configured',
} as const satisfies Record<string, string>

type CheckErrorCode = keyof typeof CHECK_ERRORS

/** The runtime is down, slow, or does not accept the API key. Proves nothing about the run or its job. */
export class RuntimeUnavailable extends Error {
  readonly code: CheckErrorCode
  /** The HTTP status, if the runtime answered. */
  readonly status: number | undefined
  /** Set for a start that certainly did not reach the runtime. */
  isUnsent = false

  constructor(code: CheckErrorCode, { status, cause }: { status?: number; cause?: unknown } = {}) {
    super(CHECK_ERRORS[code].replace('{status}', String(status)), cause === undefined ? {} : { cause })
    this.name = 'RuntimeUnavailable'
    this.code = code
    this.status = status
  }
}
