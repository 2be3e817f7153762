import { createHash } from 'node:crypto'
import { isStorableText } from '../../core/text.ts'
import type { PushMessage } from '../push-message.ts'

/** The provider takes 4,096 bytes; the rest is for what it adds on its own. */
export const MAX_PAYLOAD_BYTES = 3_584
const MAX_TTL_SECONDS = 28 * 86_400
const MAX_COLLAPSE_ID_BYTES = 64
const TOPIC = /^[\w-]{1,32}$/
const PRINTABLE = /^[\x21-\x7e]+$/
const RESERVED_KEY = /^(?:from|message_type|(?:google|gcm)\..*)$/s

export interface FcmMessage {
  token: string
  notification: { title: string; body: string }
  data?: Record<string, string>
  android: { priority: 'high' | 'normal'; ttl: string; notification: { tag: string } }
  apns: { headers: Record<string, string>; payload: { aps: { sound?: 'default' } } }
  webpush: { headers: Record<string, string>; notification: { tag: string }; fcm_options?: { link: string } }
}

export interface FcmRequestBody {
  validate_only?: true
  message: FcmMessage
}

/** The request body: the same tag on every platform and attempt, so that a second arrival replaces the first. */
export function buildFcmMessage(message: PushMessage, nowMs: number): FcmRequestBody {
  const { token, title, body, tag, link, priority, dryRun } = message
  const ttlSeconds = Math.max(0, Math.min(Math.floor(message.ttlSeconds), MAX_TTL_SECONDS))
  const isHigh = priority === 'high'
  const data = dataOf(message)
  return {
    ...(dryRun ? { validate_only: true as const } : {}),
    message: {
      token,
      notification: { title, body },
      ...(Object.keys(data).length === 0 ? {} : { data }),
      android: { priority, ttl: `${ttlSeconds}s`, notification: { tag } },
      apns: {
        headers: {
          'apns-collapse-id': collapseIdOf(tag),
          // Zero means now or never.
          'apns-expiration': String(ttlSeconds === 0 ? 0 : Math.floor(nowMs / 1000) + ttlSeconds),
          'apns-priority': isHigh ? '10' : '5',
        },
        payload: { aps: isHigh ? { sound: 'default' } : {} },
      },
      webpush: {
        headers: { Topic: topicOf(tag), TTL: String(ttlSeconds), Urgency: priority },
        notification: { tag },
        // The provider refuses the whole message for a link that is not https.
        ...(link?.startsWith('https://') ? { fcm_options: { link } } : {}),
      },
    },
  }
}

/** What counts against the limit: the bytes of what the platform has to carry that has to carry most. */
export function payloadSizeOf(content: Pick<PushMessage, 'title' | 'body' | 'data' | 'link' | 'tag'>): number {
  const whole: PushMessage = { ...content, token: '', priority: 'high', ttlSeconds: 0, dryRun: false }
  const { notification, data, android, apns, webpush } = buildFcmMessage(whole, 0).message
  const { notification: onWeb, fcm_options } = webpush
  const carried = [android.notification, apns.payload, { ...onWeb, fcm_options }]
  return Math.max(...carried.map((own) => Buffer.byteLength(JSON.stringify({ notification, data, own }))))
}

/** What is wrong with the data of a notification, or null. */
export function checkPushData(data: unknown): string | null {
  if (data === null || typeof data !== 'object' || Array.isArray(data)) return 'data must be an object'
  for (const [key, value] of Object.entries(data)) {
    if (key === '') return 'data must not have an empty key'
    if (!isStorableText(key)) return 'data has a key with NUL or unpaired surrogates'
    if (RESERVED_KEY.test(key)) return `data/${key} is reserved by the push provider`
    if (typeof value !== 'string') return `data/${key} must be a string`
  }
  return null
}

/** Apps have no other way to learn of the link: the provider knows one for the web alone. */
function dataOf({ data, link }: Pick<PushMessage, 'data' | 'link'>): Record<string, string> {
  return link === null || Object.hasOwn(data, 'link') ? { ...data } : { ...data, link }
}

function topicOf(tag: string): string {
  return TOPIC.test(tag) ? tag : digestOf(tag).slice(0, 32)
}

function collapseIdOf(tag: string): string {
  return PRINTABLE.test(tag) && tag.length <= MAX_COLLAPSE_ID_BYTES ? tag : digestOf(tag)
}

function digestOf(tag: string): string {
  return createHash('sha256').update(tag).digest('base64url')
}
