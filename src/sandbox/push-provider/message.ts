import { isJsonObject, type Json, type JsonObject } from '../../core/json.ts'

const MAX_BYTES = 4_096
const RESERVED_KEY = /^(?:from$|message_type$|google\.|gcm\.)/

/** The fields of the real API; any other field is refused. */
const REQUEST_FIELDS = new Set(['validate_only', 'message'])
const MESSAGE_FIELDS = new Set([
  'name',
  'data',
  'notification',
  'android',
  'webpush',
  'apns',
  'fcm_options',
  'token',
  'topic',
  'condition',
])
const PART_FIELDS: Readonly<Record<string, ReadonlySet<string>>> = {
  notification: new Set(['title', 'body', 'image']),
  android: new Set([
    'collapse_key',
    'priority',
    'ttl',
    'restricted_package_name',
    'data',
    'notification',
    'fcm_options',
    'direct_boot_ok',
  ]),
  apns: new Set(['headers', 'payload', 'fcm_options', 'live_activity_token']),
  webpush: new Set(['headers', 'data', 'notification', 'fcm_options']),
}

export interface SentMessage {
  validateOnly: boolean
  token: string
  message: JsonObject
}

interface MessageFault {
  says: string
  /** Null: the response has no details. */
  field: string | null
}

/** Parses a request as strictly as the real provider: one invalid field makes the whole request invalid. */
export function readMessage(text: string): SentMessage | MessageFault {
  let body: Json
  try {
    body = JSON.parse(text)
  } catch {
    return { says: 'Invalid JSON payload received. Unexpected token.', field: null }
  }
  if (!isJsonObject(body)) return { says: 'Invalid JSON payload received.', field: null }
  const { message } = body
  if (!isJsonObject(message)) return { says: 'The message is not set.', field: 'message' }
  const fault = fieldsFault(body, message) ?? targetFault(message) ?? dataFault(message.data) ?? platformFault(message)
  if (fault) return fault
  if (sizeOf(message) > MAX_BYTES) return { says: 'Message is too big', field: null }
  return { validateOnly: body.validate_only === true, token: String(message.token), message }
}

function fieldsFault(body: JsonObject, message: JsonObject): MessageFault | undefined {
  const fault = unknownField(body, { known: REQUEST_FIELDS, path: '' })
  if (fault) return fault
  for (const [part, known] of Object.entries(PART_FIELDS)) {
    const found = message[part]
    if (found === undefined) continue
    const path = `message.${part}`
    const partFault = isJsonObject(found) ? unknownField(found, { known, path }) : wrong(path)
    if (partFault) return partFault
  }
  return unknownField(message, { known: MESSAGE_FIELDS, path: 'message' })
}

function unknownField(
  found: JsonObject,
  { known, path }: { known: ReadonlySet<string>; path: string },
): MessageFault | undefined {
  for (const name in found) {
    if (known.has(name)) continue
    const says = `Invalid JSON payload received. Unknown name "${name}" at '${path}': Cannot find field.`
    return { says, field: path }
  }
  return undefined
}

function targetFault({ token, topic, condition }: JsonObject): MessageFault | undefined {
  const targets = [token, topic, condition].filter((target) => target !== undefined)
  if (targets.length !== 1) return { says: 'Recipient of the message is not set.', field: 'message' }
  if (typeof token !== 'string') return { says: 'The sandbox delivers to registration tokens only', field: 'message' }
  if (token === '') {
    return { says: 'The registration token is not a valid FCM registration token', field: 'message.token' }
  }
  return undefined
}

function dataFault(data: Json | undefined): MessageFault | undefined {
  if (data === undefined) return undefined
  if (!isJsonObject(data)) return wrong('message.data')
  for (const [index, [key, value]] of Object.entries(data).entries()) {
    if (RESERVED_KEY.test(key)) {
      return { says: `Invalid data payload key: ${key}`, field: `message.data[${index}].key` }
    }
    if (typeof value !== 'string') {
      return { says: `Invalid value at 'message.data[${index}].value' (TYPE_STRING)`, field: 'message.data' }
    }
  }
  return undefined
}

function platformFault({ android, apns, webpush }: JsonObject): MessageFault | undefined {
  const { priority = 'normal', ttl = '0s' } = asObject(android)
  if (!/^(?:high|normal)$/i.test(String(priority))) return wrong('message.android.priority')
  if (!/^\d+(?:\.\d+)?s$/.test(String(ttl))) return wrong('message.android.ttl')
  const apnsHeaders = asObject(asObject(apns).headers)
  const { 'apns-collapse-id': collapseId = '' } = apnsHeaders
  if (!hasStringsOnly(apnsHeaders) || Buffer.byteLength(String(collapseId)) > 64) return wrong('message.apns.headers')
  const webHeaders = asObject(asObject(webpush).headers)
  const { Topic: topic = '' } = webHeaders
  if (!hasStringsOnly(webHeaders) || !/^[\w-]{0,32}$/.test(String(topic))) return wrong('message.webpush.headers')
  const { link = 'https://' } = asObject(asObject(webpush).fcm_options)
  return String(link).startsWith('https://') ? undefined : wrong('message.webpush.fcm_options.link')
}

/** The size of the message for the platform where it is largest. */
function sizeOf({ notification, data, android, apns, webpush }: JsonObject): number {
  const { headers: _headers, ...onWeb } = asObject(webpush)
  const { notification: ownNotification, data: ownData } = asObject(android)
  const carried = [[ownNotification, ownData], asObject(apns).payload, onWeb]
  return Math.max(...carried.map((own) => Buffer.byteLength(JSON.stringify([notification, data, own]))))
}

function wrong(field: string): MessageFault {
  return { says: `Invalid value at '${field}'`, field }
}

function hasStringsOnly(headers: JsonObject): boolean {
  return Object.values(headers).every((value) => typeof value === 'string')
}

function asObject(value: Json | undefined): JsonObject {
  return isJsonObject(value) ? value : {}
}
