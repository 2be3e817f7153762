import type { Json } from '../../core/json.ts'
import { type HttpResponse, json } from '../http-response.ts'

/** The outcome of one message: whether a device gets it, and how the provider answers. */
export interface MessageOutcome {
  outcome: string
  delivered: boolean
  /** `truncated` cuts the response in half; `hang`, `goaway` and `rst` give none. */
  way: 'answer' | 'truncated' | 'hang' | 'goaway' | 'rst'
  response: HttpResponse
}

const RPC = 'type.googleapis.com/google.rpc'
const FCM_ERROR = 'type.googleapis.com/google.firebase.fcm.v1.FcmError'

/** Failures with the statuses, error codes and messages of the real provider. */
const FAILURES = {
  unregistered: { status: 404, word: 'NOT_FOUND', code: 'UNREGISTERED', says: 'Requested entity was not found.' },
  mismatch: { status: 403, word: 'PERMISSION_DENIED', code: 'SENDER_ID_MISMATCH', says: 'SenderId mismatch' },
  third_party_auth: {
    status: 401,
    word: 'UNAUTHENTICATED',
    code: 'THIRD_PARTY_AUTH_ERROR',
    says: 'Auth error from APNS or Web Push Service',
  },
  quota: { status: 429, word: 'RESOURCE_EXHAUSTED', code: 'QUOTA_EXCEEDED', says: 'Quota exceeded for this project' },
  internal: { status: 500, word: 'INTERNAL', code: 'INTERNAL', says: 'Internal error encountered.' },
  down: { status: 503, word: 'UNAVAILABLE', code: 'UNAVAILABLE', says: 'The service is currently unavailable.' },
  wrong_project: { status: 404, word: 'NOT_FOUND', code: null, says: 'Requested entity was not found.' },
  permission: {
    status: 403,
    word: 'PERMISSION_DENIED',
    code: null,
    says: "Permission 'cloudmessaging.messages.create' denied on resource or it may not exist.",
  },
  unauthenticated: {
    status: 401,
    word: 'UNAUTHENTICATED',
    code: null,
    says: 'Request had invalid authentication credentials. Expected OAuth 2 access token.',
  },
} as const

type Failure = keyof typeof FAILURES

/** A registration token that begins with one of these fails in this way. Any other token belongs to a working device. */
export const PUSH_PREFIXES: Readonly<Record<string, string>> = {
  'dead-': 'the app was removed (404 UNREGISTERED)',
  'bad-': 'not a registration token (400)',
  'mismatch-': 'of another project (403 SENDER_ID_MISMATCH)',
  'thirdparty-': 'no key for this platform (401 THIRD_PARTY_AUTH_ERROR)',
  'quota-': 'quota exceeded (429)',
  'down-': 'unavailable (503)',
  'internal-': 'internal error (500)',
  'html-': 'a page from the load balancer (502)',
  'delivered503-': 'delivered, and answered 503',
  'truncated-': 'delivered, and half an answer',
  'slow-': 'delivered, and answered late',
  'hang-': 'never answered',
  'goaway-': 'connection closed with GOAWAY',
  'rst-': 'stream reset',
}

export function failed(failure: Failure, headers: Record<string, string> = {}): HttpResponse {
  const { status, word, code, says } = FAILURES[failure]
  const details = code === null ? [] : [{ '@type': FCM_ERROR, errorCode: code }]
  return { ...errorAnswer({ status, word, says, details }), headers }
}

/** `field` is the invalid field; without it the response has no details. */
export function invalid(says: string, field: string | null): HttpResponse {
  const details =
    field === null
      ? []
      : [
          { '@type': FCM_ERROR, errorCode: 'INVALID_ARGUMENT' },
          { '@type': `${RPC}.BadRequest`, fieldViolations: [{ field, description: says }] },
        ]
  return errorAnswer({ status: 400, word: 'INVALID_ARGUMENT', says, details })
}

/** The outcome that the prefix of a registration token selects; `accepted` is the response to a message that arrived. */
export function outcomeOf(
  token: string,
  options: { accepted: HttpResponse; retryAfter: Record<string, string> },
): MessageOutcome {
  const { accepted, retryAfter } = options
  const prefix = Object.keys(PUSH_PREFIXES).find((one) => token.startsWith(one)) ?? ''
  const outcome = prefix === '' ? 'sent' : prefix.slice(0, -1)
  const refuse = (response: HttpResponse): MessageOutcome => ({ outcome, delivered: false, way: 'answer', response })
  switch (prefix) {
    case 'dead-':
      return refuse(failed('unregistered'))
    case 'bad-':
      return refuse(invalid('The registration token is not a valid FCM registration token', 'message.token'))
    case 'mismatch-':
      return refuse(failed('mismatch'))
    case 'thirdparty-':
      return refuse(failed('third_party_auth'))
    case 'quota-':
      return refuse(failed('quota', retryAfter))
    case 'down-':
      return refuse(failed('down', retryAfter))
    case 'internal-':
      return refuse(failed('internal', retryAfter))
    case 'html-':
      return refuse(badGateway())
    case 'delivered503-':
      return { ...refuse(failed('down', retryAfter)), delivered: true }
    case 'truncated-':
      return { outcome, delivered: true, way: 'truncated', response: accepted }
    case 'hang-':
    case 'goaway-':
    case 'rst-':
      return { outcome, delivered: false, way: prefix.slice(0, -1) as MessageOutcome['way'], response: accepted }
    default:
      return { outcome, delivered: true, way: 'answer', response: accepted }
  }
}

function errorAnswer(error: { status: number; word: string; says: string; details: Json[] }): HttpResponse {
  const { status, word, says, details } = error
  const shown = details.length === 0 ? {} : { details }
  return json(status, { error: { code: status, message: says, status: word, ...shown } })
}

function badGateway(): HttpResponse {
  const body = '<!DOCTYPE html><html><title>Error 502 (Server Error)!!1</title><p><b>502.</b> That’s an error.</html>'
  return { status: 502, headers: { 'content-type': 'text/html; charset=UTF-8' }, body }
}
