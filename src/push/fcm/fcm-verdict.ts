import { isJsonObject, type JsonObject } from '../../core/json.ts'
import { asStorableText } from '../../core/text.ts'
import { readRetryAfter } from '../../deliveries/retry-after.ts'
import type { PushVerdict } from '../push-provider.ts'
import { type FcmAnswer, parseAnswer } from './fcm-transport.ts'

const QUOTA_PAUSE_MS = 60_000
const MAX_MESSAGE_CHARS = 200
/** With a key of another project, FCM gives this answer for every device. */
const WRONG_PROJECT =
  'the provider reports that devices belong to another project, and no message is delivered: check that the credentials are those of the app'
const NOT_A_TOKEN = /not a valid FCM registration token/i

/** The parts of an answer that the tables below use. */
interface ParsedAnswer {
  body: JsonObject
  details: JsonObject[]
  /** The error code of FCM itself; null when a proxy in front of it answered. */
  errorCode: string | null
  message: string
  /** Shown to the operator. */
  reason: string
  retryAfterMs: number | null
}

type Rule = (parsed: ParsedAnswer) => PushVerdict

const retry: Rule = ({ reason, retryAfterMs }) => ({ kind: 'retry', reason, afterMs: retryAfterMs })
const halt: Rule = ({ reason }) => ({ kind: 'halt', reason })
const drop: Rule = ({ reason }) => ({ kind: 'drop', reason, alert: false })
const spentQuota: Rule = ({ reason, retryAfterMs }) => ({
  kind: 'retry',
  reason,
  afterMs: retryAfterMs ?? QUOTA_PAUSE_MS,
})

const BY_ERROR_CODE: Readonly<Record<string, Rule>> = {
  UNREGISTERED: () => ({ kind: 'disable', reason: 'unregistered', credentialsFault: null }),
  SENDER_ID_MISMATCH: () => ({ kind: 'disable', reason: 'sender_mismatch', credentialsFault: WRONG_PROJECT }),
  INVALID_ARGUMENT: refused,
  THIRD_PARTY_AUTH_ERROR: ({ reason }) => ({ kind: 'drop', reason, alert: true }),
  QUOTA_EXCEEDED: spentQuota,
  UNAVAILABLE: retry,
  INTERNAL: retry,
}

/** A status that is not listed: from 500 on a retry may help; any other means that the URL is wrong. */
const BY_STATUS: Readonly<Record<number, Rule>> = {
  200: accepted,
  400: refused,
  401: (parsed) => halt({ ...parsed, reason: `the access token is refused: ${parsed.reason}` }),
  403: (parsed) => halt({ ...parsed, reason: `the credentials may not send: ${parsed.reason}` }),
  404: (parsed) => halt({ ...parsed, reason: `no such project: ${parsed.reason}` }),
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

interface JudgeOptions {
  nowMs: number
  /** Values that FCM may quote and that the reason must not contain. */
  secrets?: readonly string[]
}

/** Translates an answer into a verdict, by FCM's own error code if there is one, otherwise by the status. */
export function judgeAnswer(answer: FcmAnswer, options: JudgeOptions): PushVerdict {
  const parsed = read(answer, options)
  const { errorCode } = parsed
  const byCode = errorCode !== null && Object.hasOwn(BY_ERROR_CODE, errorCode) ? BY_ERROR_CODE[errorCode] : undefined
  const rule = byCode ?? BY_STATUS[answer.status] ?? (answer.status >= 500 ? retry : halt)
  return rule(parsed)
}

/** Whether the OAuth token is refused, as opposed to a key for APNs or Web Push that FCM holds. */
export function refusesBearer(answer: FcmAnswer): boolean {
  return answer.status === 401 && read(answer, { nowMs: 0 }).errorCode === null
}

function accepted({ body, reason }: ParsedAnswer): PushVerdict {
  const { name } = body
  if (typeof name === 'string' && name !== '') return { kind: 'sent', messageId: asStorableText(name, 255) }
  return { kind: 'retry', reason: `an answer without a message id: ${reason}`, afterMs: null }
}

function refused({ details, message, reason }: ParsedAnswer): PushVerdict {
  const fields = details.flatMap(({ fieldViolations }) => (Array.isArray(fieldViolations) ? fieldViolations : []))
  const isToken = fields.some((violation) => isJsonObject(violation) && violation.field === 'message.token')
  if (isToken || NOT_A_TOKEN.test(message)) return { kind: 'disable', reason: 'invalid_token', credentialsFault: null }
  return { kind: 'drop', reason, alert: false }
}

function read({ status, headers, body: text }: FcmAnswer, { nowMs, secrets = [] }: JudgeOptions): ParsedAnswer {
  const body = parseAnswer(text)
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
