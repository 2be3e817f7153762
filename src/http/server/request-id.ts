import type { IncomingMessage } from 'node:http'
import type { IdGenerator } from '../../core/ids.ts'

const ACCEPTABLE = /^[A-Za-z0-9._-]{1,128}$/

/**
 * Keeps a well-formed inbound `X-Request-Id`, so that a trace can cross services; replaces any other value with a new id.
 */
export function requestIdFrom(ids: IdGenerator): (raw: Pick<IncomingMessage, 'headers'>) => string {
  return (raw) => {
    const given = raw.headers['x-request-id']
    return typeof given === 'string' && ACCEPTABLE.test(given) ? given : ids.next('req')
  }
}
