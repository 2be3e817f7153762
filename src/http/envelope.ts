import { type TSchema, Type } from 'typebox'
import type { ErrorCode } from '../core/errors.ts'
import { STATUS_BY_CODE } from '../core/errors.ts'

interface ErrorBody {
  code: ErrorCode
  message: string
  requestId: string
}

/** The shape of an error answer, the only difference between the two variants. */
export interface Envelope {
  render(error: ErrorBody): object
  schema: TSchema
}

const code = Type.Unsafe<ErrorCode>({
  title: 'ErrorCode',
  type: 'string',
  enum: Object.keys(STATUS_BY_CODE),
  description: 'Stable; branch on this, not on the message.',
})
const message = Type.String({ description: 'What went wrong, for a developer to read.' })
// Not named `Error`: in a generated client that name would hide the language's own class.
const WHOLE = { $id: 'ErrorResponse', title: 'ErrorResponse', description: 'The body of every error.' }
const DETAIL = { title: 'ErrorDetail', description: 'What went wrong.' }

const variantA: Envelope = {
  render: (error) => ({ detail: { code: error.code, message: error.message } }),
  schema: Type.Object(
    { detail: Type.Object({ code, message }, { ...DETAIL, additionalProperties: false }) },
    { ...WHOLE, additionalProperties: false },
  ),
}

const variantB: Envelope = {
  render: (error) => ({ error: { code: error.code, message: error.message, requestId: error.requestId } }),
  schema: Type.Object(
    {
      error: Type.Object(
        { code, message, requestId: Type.String({ description: 'The same as the X-Request-Id header.' }) },
        { ...DETAIL, additionalProperties: false },
      ),
    },
    { ...WHOLE, additionalProperties: false },
  ),
}

export function envelopeOf(variant: 'A' | 'B'): Envelope {
  return variant === 'A' ? variantA : variantB
}
