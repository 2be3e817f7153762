import type { PushProvider } from '../push-provider.ts'
import { FCM_LIMITS, payloadBytesOf } from './fcm-message.ts'

const RESERVED_KEY = /^(?:from|message_type|(?:google|gcm)\..*)$/s

/** The rules of Firebase Cloud Messaging that can be checked without credentials. */
export const fcm: PushProvider = {
  name: 'fcm',
  limits: FCM_LIMITS,
  payloadBytesOf,
  validate: (content) => {
    const reserved = Object.keys(content.data).find((key) => RESERVED_KEY.test(key))
    if (reserved !== undefined) return { path: `/data/${reserved}`, problem: 'is reserved by the push provider' }
    if (payloadBytesOf(content) <= FCM_LIMITS.payloadBytes) return null
    return { path: '', problem: `makes a message larger than ${FCM_LIMITS.payloadBytes} bytes` }
  },
}
