import { atPointer, isJsonObject, type Json, type JsonObject } from '../../core/json.ts'
import { NO_TOKENS, type Tokens } from '../job.ts'
import type { JobType } from '../job-types.ts'

/** Finds the job's result in the graph's values. Undefined when it is missing or null. */
export function extractOutput(type: Pick<JobType, 'outputKey'>, values: JsonObject): Json | undefined {
  const found = type.outputKey === null ? lastAssistantMessage(values) : lookUp(values, type.outputKey)
  return found === null ? undefined : found
}

/** An upper bound, so that a wrong number from one graph does not make its owner's totals useless. */
const MAX_TOKENS = 1e12

/** Reads the tokens that the graph reports, under the type's usage key or on its messages. */
export function extractTokens(type: Pick<JobType, 'usageKey'>, values: JsonObject): Tokens {
  if (type.usageKey !== null) return readTokens(lookUp(values, type.usageKey))
  const messages = Array.isArray(values.messages) ? values.messages : []
  return messages.map((message) => readTokens(fieldsOf(message)?.usage_metadata)).reduce(add, NO_TOKENS)
}

function add(a: Tokens, b: Tokens): Tokens {
  const sum = (x: number, y: number) => Math.min(x + y, MAX_TOKENS)
  return { input: sum(a.input, b.input), output: sum(a.output, b.output), total: sum(a.total, b.total) }
}

function lookUp(values: JsonObject, key: string): Json | undefined {
  if (key.startsWith('/')) return atPointer(values, key)
  return Object.hasOwn(values, key) ? values[key] : undefined
}

function lastAssistantMessage(values: JsonObject): Json | undefined {
  const messages = Array.isArray(values.messages) ? values.messages : []
  for (const message of messages.toReversed()) {
    const fields = fieldsOf(message)
    if (fields && isFromAssistant(message, fields)) return fields.content
  }
  return undefined
}

/** A message is a plain object, or wrapped by the framework's serializers with its fields in `kwargs` or `data`. */
function fieldsOf(message: Json): JsonObject | undefined {
  if (!isJsonObject(message)) return undefined
  return [message.kwargs, message.data].find(isJsonObject) ?? message
}

const ASSISTANT = new Set<Json | undefined>(['assistant', 'ai', 'AIMessage', 'AIMessageChunk'])

/** The role, the type or the class name tells who wrote the message. */
function isFromAssistant(message: Json, fields: JsonObject): boolean {
  if (!isJsonObject(message)) return false
  const className = Array.isArray(message.id) ? message.id.at(-1) : undefined
  return [fields.role, fields.type, message.type, className].some((name) => ASSISTANT.has(name))
}

function readTokens(value: Json | undefined): Tokens {
  if (!isJsonObject(value)) return NO_TOKENS
  const input = count(value.input_tokens)
  const output = count(value.output_tokens)
  return { input, output, total: count(value.total_tokens) || Math.min(input + output, MAX_TOKENS) }
}

function count(value: Json | undefined): number {
  return typeof value === 'number' && Number.isInteger(value) && value >= 0 && value <= MAX_TOKENS ? value : 0
}
