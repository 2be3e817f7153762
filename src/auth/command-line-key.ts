import { timingSafeEqual } from 'node:crypto'
import type { Random } from '../core/random.ts'
import { COMMAND_LINE, type CommandLinePrincipal } from './principal.ts'
import { ADMIN_SCOPE } from './scopes.ts'
import { createServiceKey } from './service-key.ts'

/**
 * The key of one start of the service, for commands on its machine. It is in memory and in a file of the data folder, never
 * in the database. The gate accepts it only from this machine.
 */
export class CommandLineKey {
  readonly text: string
  readonly principal: CommandLinePrincipal

  constructor({ random, user }: { random: Random; user: string }) {
    this.text = createServiceKey(random)
    this.principal = { kind: COMMAND_LINE, id: COMMAND_LINE, user, scopes: [ADMIN_SCOPE], expiresAtMs: null }
  }

  /** Constant-time compare; the length is not secret. */
  matches(key: string): boolean {
    return key.length === this.text.length && timingSafeEqual(Buffer.from(key, 'latin1'), Buffer.from(this.text))
  }
}
