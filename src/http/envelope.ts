import { type TSchema, Type } from 'typebox'
import type { ErrorCode } from '../core/errors.ts'
import { STATUS_BY_CODE } from '../core/errors.ts'

export interface ErrorBody {
  code: ErrorCode
  message: string
  requestId: string
}

/** The shape of an error answer, the only difference between the two variants. */
export interface Envelope {
  render(error: ErrorBody): object
  schema: TSchema
}

const codes = Type.Unsafe<ErrorCode>({
  type: 'string',
  enum: Object.keys(STATUS_BY_CODE),
  description: 'Stable; branch on this, not on the message.',
})
const message = Type.String({ description: 'What went wrong, for a developer to read.' })

const variantA: Envelope = {
  render: (error) => ({ detail: { code: error.code, message: error.message } }),
  schema: Type.Object(
    { detail: Type.Object({ code: codes, message }, { additionalProperties: false }) },
    { $id: 'Error', title: 'Error', additionalProperties: false },
  ),
}

const variantB: Envelope = {
  render: (error) => ({ error: { code: error.code, message: error.message, requestId: error.requestId } }),
  schema: Type.Object(
    {
      error: Type.Object(
        {
          code: codes,
          message,
          requestId: Type.Optional(Type.String({ description: 'The same as the X-Request-Id header.' })),
        },
        { additionalProperties: false },
      ),
    },
    { $id: 'Error', title: 'Error', additionalProperties: false },
  ),
}

export function envelopeOf(variant: 'A' | 'B'): Envelope {
  return variant === 'A' ? variantA : variantB
}
