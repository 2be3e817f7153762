import type { JsonPart } from '../core/json/json-part.ts'
import { JsonText } from '../core/json/json-text.ts'
import { type Wanted, WHOLE, wantAll, wantFields, wantItems, wantPath } from '../core/json/wanted.ts'
import { NO_TOKENS, type Tokens } from './job.ts'
import type { DocumentSchema } from './schemas/document-schema.ts'

/** Where a job type's output and tokens are in the graph's values. */
export interface OutputPlaces {
  /** A key or a JSON Pointer. Null: the last assistant message. */
  outputKey: string | null
  /** A key or a JSON Pointer. Null: the messages report the tokens. */
  usageKey: string | null
}

const USAGE = wantFields({ input_tokens: WHOLE, output_tokens: WHOLE, total_tokens: WHOLE })
const FIELDS = wantFields({ role: WHOLE, type: WHOLE, content: WHOLE, usage_metadata: USAGE })
const MESSAGE = wantAll(FIELDS, wantFields({ id: WHOLE, kwargs: FIELDS, data: FIELDS }))
const MESSAGES = wantFields({ messages: wantItems(MESSAGE) })

/** The parts of the graph's values that hold the output and the tokens. */
export function wantedValues({ outputKey, usageKey }: OutputPlaces): Wanted {
  const output = outputKey === null ? MESSAGES : wantPath(pathOf(outputKey))
  return wantAll(output, usageKey === null ? MESSAGES : wantPath(pathOf(usageKey), USAGE))
}

/**
 * Finds the job's result in the graph's values. Undefined when it is missing. Null under the output key is a result only
 * where the output schema allows null. In a later turn of a conversation the messages before the last human message are
 * those of earlier turns.
 */
export function extractOutput(
  { outputKey, outputSchema }: Pick<OutputPlaces, 'outputKey'> & { outputSchema?: DocumentSchema | null },
  values: JsonPart,
  { isLaterTurn = false } = {},
): JsonText | undefined {
  const messages = isLaterTurn ? messagesOfTurn(values) : messagesIn(values)
  const found = outputKey === null ? lastAssistantMessage(messages) : values.at(...pathOf(outputKey))
  if (found === undefined) return undefined
  const output = new JsonText(found.text)
  const allowsNull = () => outputKey !== null && outputSchema?.faultOf(output, 'output') === null
  return found.kind === 'null' && !allowsNull() ? undefined : output
}

/** An upper limit, so that a wrong number from one graph does not spoil the totals of its owner. */
const MAX_TOKENS = 1e12

/**
 * Reads the tokens that the graph reports: under the type's usage key, or on the assistant messages after the last human
 * message. Earlier messages are the history of the conversation, which was counted before.
 */
export function extractTokens({ usageKey }: Pick<OutputPlaces, 'usageKey'>, values: JsonPart): Tokens {
  if (usageKey !== null) return readTokens(values.at(...pathOf(usageKey)))
  return messagesOfTurn(values)
    .filter((message) => isFrom(ASSISTANT, message))
    .map((message) => readTokens(fieldsOf(message).at('usage_metadata')))
    .reduce(add, NO_TOKENS)
}

function add(a: Tokens, b: Tokens): Tokens {
  const sum = (x: number, y: number) => Math.min(x + y, MAX_TOKENS)
  return { input: sum(a.input, b.input), output: sum(a.output, b.output), total: sum(a.total, b.total) }
}

/** A key is a path of one name. A JSON Pointer (RFC 6901) starts with a slash. */
function pathOf(key: string): string[] {
  if (!key.startsWith('/')) return [key]
  const names = key.split('/').slice(1)
  return names.map((name) => name.replaceAll('~1', '/').replaceAll('~0', '~'))
}

function messagesIn(values: JsonPart): readonly JsonPart[] {
  return values.at('messages')?.items ?? []
}

function messagesOfTurn(values: JsonPart): readonly JsonPart[] {
  const messages = messagesIn(values)
  return messages.slice(messages.findLastIndex((message) => isFrom(HUMAN, message)) + 1)
}

function lastAssistantMessage(messages: readonly JsonPart[]): JsonPart | undefined {
  const last = messages.findLast((message) => isFrom(ASSISTANT, message))
  return last && fieldsOf(last).at('content')
}

/** A message is a plain object, or wrapped by the framework's serializers with its fields in `kwargs` or `data`. */
function fieldsOf(message: JsonPart): JsonPart {
  return [message.at('kwargs'), message.at('data')].find((part) => part?.kind === 'object') ?? message
}

const ASSISTANT = new Set<unknown>(['assistant', 'ai', 'AIMessage', 'AIMessageChunk'])
const HUMAN = new Set<unknown>(['user', 'human', 'HumanMessage', 'HumanMessageChunk'])

/** The role, the type or the class name shows the author of the message. */
function isFrom(names: ReadonlySet<unknown>, message: JsonPart): boolean {
  const fields = fieldsOf(message)
  const given = [fields.at('role'), fields.at('type'), message.at('type')]
  if (given.some((part) => names.has(part?.parse(MAX_NAME_LENGTH)))) return true
  const id = message.at('id')
  const path = id?.kind === 'array' ? id.parse(MAX_NAME_LENGTH) : undefined
  return Array.isArray(path) && names.has(path.at(-1))
}

/** A longer name, or path of a class, is none that is known. Parsing it for each of many messages would take long. */
const MAX_NAME_LENGTH = 200

function readTokens(part: JsonPart | undefined): Tokens {
  const input = count(part?.at('input_tokens'))
  const output = count(part?.at('output_tokens'))
  return { input, output, total: count(part?.at('total_tokens')) || Math.min(input + output, MAX_TOKENS) }
}

function count(part: JsonPart | undefined): number {
  const value = part?.parse(MAX_NAME_LENGTH)
  return typeof value === 'number' && Number.isInteger(value) && value >= 0 && value <= MAX_TOKENS ? value : 0
}
