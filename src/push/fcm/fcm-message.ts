import { createHash } from 'node:crypto'
import type { PushContent, PushLimits, PushMessage } from '../push-provider.ts'

const DAY_SECONDS = 86_400

export const FCM_LIMITS: PushLimits = {
  /** FCM accepts 4,096 bytes; the difference is for the fields that FCM adds. */
  payloadBytes: 3_584,
  tokenBytes: 4_096,
  ttlSeconds: 28 * DAY_SECONDS,
  /** FCM forgets an Android device after 270 days without a connection. */
  idleDeviceMs: { android: 270 * DAY_SECONDS * 1_000 },
}
const MAX_COLLAPSE_ID_BYTES = 64
const TOPIC = /^[\w-]{1,32}$/
const PRINTABLE = /^[\x21-\x7e]+$/

interface FcmMessage {
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

/**
 * Builds the request body, with the same tag on every platform and attempt, so that a repeated message replaces the first
 * on the device.
 */
export function buildFcmMessage(message: PushMessage, nowMs: number): FcmRequestBody {
  const { token, title, body, tag, link, priority, dryRun } = message
  const ttlSeconds = Math.max(0, Math.min(Math.floor(message.ttlSeconds), FCM_LIMITS.ttlSeconds))
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
          // Zero: deliver now or not at all.
          'apns-expiration': String(ttlSeconds === 0 ? 0 : Math.floor(nowMs / 1000) + ttlSeconds),
          'apns-priority': isHigh ? '10' : '5',
        },
        payload: { aps: isHigh ? { sound: 'default' } : {} },
      },
      webpush: {
        headers: { Topic: topicOf(tag), TTL: String(ttlSeconds), Urgency: priority },
        notification: { tag },
        // FCM refuses the whole message if the link is not https.
        ...(link?.startsWith('https://') ? { fcm_options: { link } } : {}),
      },
    },
  }
}

/** The payload differs per platform; the largest of the three counts against the limit. */
export function payloadBytesOf(content: PushContent): number {
  const whole: PushMessage = { ...content, token: '', priority: 'high', ttlSeconds: 0, dryRun: false }
  const { notification, data, android, apns, webpush } = buildFcmMessage(whole, 0).message
  const { notification: onWeb, fcm_options } = webpush
  const carried = [android.notification, apns.payload, { ...onWeb, fcm_options }]
  return Math.max(...carried.map((own) => Buffer.byteLength(JSON.stringify({ notification, data, own }))))
}

/** Apps get the link in the data, because FCM has a field for a link on the web only. */
function dataOf({ data, link }: Pick<PushContent, 'data' | 'link'>): Record<string, string> {
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
