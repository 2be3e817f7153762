import { isJsonObject, type JsonObject } from '../../core/json.ts'
import { asStorableText } from '../../core/text.ts'
import type { PushVerdict } from '../push-message.ts'
import type { FcmAnswer } from './fcm-transport.ts'

const QUOTA_PAUSE_MS = 60_000
const MAX_PAUSE_MS = 3_600_000
const MAX_MESSAGE_CHARS = 200
const NOT_A_TOKEN = /not a valid FCM registration token/i

/** An answer as the table below looks at it. */
interface Finding {
  body: JsonObject
  details: JsonObject[]
  /** What the provider itself says is wrong; null when the answer comes from something in front of it. */
  errorCode: string | null
  message: string
  /** For the operator. */
  reason: string
  retryAfterMs: number | null
}

type Rule = (finding: Finding) => PushVerdict

const retry: Rule = ({ reason, retryAfterMs }) => ({ kind: 'retry', reason, afterMs: retryAfterMs })
const halt: Rule = ({ reason }) => ({ kind: 'halt', reason })
const drop: Rule = ({ reason }) => ({ kind: 'drop', reason, alert: false })
const spentQuota: Rule = ({ reason, retryAfterMs }) => ({
  kind: 'retry',
  reason,
  afterMs: retryAfterMs ?? QUOTA_PAUSE_MS,
})

const BY_ERROR_CODE: Readonly<Record<string, Rule>> = {
  UNREGISTERED: () => ({ kind: 'disable', reason: 'unregistered' }),
  SENDER_ID_MISMATCH: () => ({ kind: 'disable', reason: 'sender_mismatch' }),
  INVALID_ARGUMENT: refused,
  THIRD_PARTY_AUTH_ERROR: ({ reason }) => ({ kind: 'drop', reason, alert: true }),
  QUOTA_EXCEEDED: spentQuota,
  UNAVAILABLE: retry,
  INTERNAL: retry,
}

/** Those not listed: from 500 on it is worth another try, anything else says that this is not the right address. */
const BY_STATUS: Readonly<Record<number, Rule>> = {
  200: accepted,
  400: refused,
  401: (finding) => halt({ ...finding, reason: `the access token is refused: ${finding.reason}` }),
  403: (finding) => halt({ ...finding, reason: `the credentials may not send: ${finding.reason}` }),
  404: (finding) => halt({ ...finding, reason: `no such project: ${finding.reason}` }),
  408: retry,
  409: retry,
  413: drop,
  421: retry,
  422: drop,
  425: retry,
  429: spentQuota,
  431: drop,
  499: retry,
}

export interface JudgeOptions {
  nowMs: number
  /** What the provider may quote and a reason must not repeat. */
  secrets?: readonly string[]
}

/** What an answer means, by the provider's own error code where it gives one, and only then by the status. */
export function judgeAnswer(answer: FcmAnswer, options: JudgeOptions): PushVerdict {
  const finding = read(answer, options)
  const { errorCode } = finding
  const byCode = errorCode !== null && Object.hasOwn(BY_ERROR_CODE, errorCode) ? BY_ERROR_CODE[errorCode] : undefined
  const rule = byCode ?? BY_STATUS[answer.status] ?? (answer.status >= 500 ? retry : halt)
  return rule(finding)
}

/** The OAuth token is stale, as opposed to a credential that the provider holds for others. */
export function refusesBearer(answer: FcmAnswer): boolean {
  return answer.status === 401 && read(answer, { nowMs: 0 }).errorCode === null
}

function accepted({ body, reason }: Finding): PushVerdict {
  const { name } = body
  if (typeof name === 'string' && name !== '') return { kind: 'sent', messageId: asStorableText(name, 255) }
  return { kind: 'retry', reason: `an answer without a message id: ${reason}`, afterMs: null }
}

function refused({ details, message, reason }: Finding): PushVerdict {
  const fields = details.flatMap(({ fieldViolations }) => (Array.isArray(fieldViolations) ? fieldViolations : []))
  const isToken = fields.some((violation) => isJsonObject(violation) && violation.field === 'message.token')
  if (isToken || NOT_A_TOKEN.test(message)) return { kind: 'disable', reason: 'invalid_token' }
  return { kind: 'drop', reason, alert: false }
}

function read({ status, headers, body: text }: FcmAnswer, { nowMs, secrets = [] }: JudgeOptions): Finding {
  const body = parse(text)
  const error = isJsonObject(body.error) ? body.error : {}
  const details = Array.isArray(error.details) ? error.details.filter(isJsonObject) : []
  const own = details.find((detail) => typeof detail['@type'] === 'string' && detail['@type'].endsWith('FcmError'))
  const errorCode = typeof own?.errorCode === 'string' ? own.errorCode : null
  const message = typeof error.message === 'string' ? error.message : ''
  const word = errorCode ?? (typeof error.status === 'string' ? error.status : null)
  const said = [word === null ? `${status}` : `${status} ${word}`, ...(message === '' ? [] : [message])].join(': ')
  const reason = secrets.reduce((words, secret) => (secret === '' ? words : words.replaceAll(secret, '…')), said)
  const retryAfterMs = readRetryAfter(headers['retry-after'], nowMs)
  return { body, details, errorCode, message, reason: asStorableText(reason, MAX_MESSAGE_CHARS), retryAfterMs }
}

/** An HTML page, half a document and a list all say nothing. */
function parse(text: string): JsonObject {
  try {
    const value: unknown = JSON.parse(text)
    return isJsonObject(value) ? value : {}
  } catch {
    return {}
  }
}

/** Seconds or a date, an hour at most; null for what is neither. */
export function readRetryAfter(value: string | string[] | undefined, nowMs: number): number | null {
  if (typeof value !== 'string' || !/^(?:\d+$|[A-Z][a-z]+, )/.test(value)) return null
  const afterMs = /^\d/.test(value) ? Number(value) * 1000 : Date.parse(value) - nowMs
  return Number.isNaN(afterMs) ? null : Math.max(0, Math.min(afterMs, MAX_PAUSE_MS))
}
