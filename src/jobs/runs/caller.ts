import { createHmac } from 'node:crypto'
import { COMMAND_LINE, type Principal, principalId } from '../../auth/principal.ts'
import type { JsonObject } from '../../core/json.ts'
import type { RuntimeIdentity } from '../identity-store.ts'
import type { JobContext } from '../job-context.ts'
import { ERASED_ACTOR, type JobRow, type SlimJob } from '../job-row.ts'

/** The principal that asks for a run. `scopes`: those of its credential; null if they are not known any more. */
export interface Asker {
  id: string
  scopes: readonly string[] | null
}

export function askerOf(principal: Principal): Asker {
  return { id: principalId(principal), scopes: principal.scopes }
}

/** The asker of a change without a credential: an operation in the background, or a command. */
export function askerWithoutScopes({ kind, id }: { kind: string; id: string }): Asker {
  // The name of a user of the machine could be the `sub` of another person.
  return { id: kind === COMMAND_LINE ? COMMAND_LINE : id, scopes: null }
}

/** What is stored of the asker. The owner acts with the scopes of the request, another principal with none. */
export function askedBy({ id, scopes }: Asker, owner: string | null): Pick<JobRow, 'actor' | 'scopes'> {
  if (id !== owner) return { actor: id, scopes: null }
  return { actor: null, scopes: scopes && JSON.stringify(scopes) }
}

/** How the runtime learns ids of principals. Null: it learns none. Only ids of people become pseudonyms. */
export function identifyBy({ mode, secret }: RuntimeIdentity): JobContext['identify'] {
  if (mode === 'none') return null
  if (mode === 'sub') return (id) => id
  if (secret === null) throw new Error('Pseudonyms need a secret')
  return (id) => (isOfPerson(id) ? createHmac('sha256', secret).update(id).digest('hex') : id)
}

const SERVICE_ACCOUNT = /^svc_[0-9a-z]{26}$/

function isOfPerson(id: string): boolean {
  return !SERVICE_ACCOUNT.test(id) && id !== COMMAND_LINE && id !== ERASED_ACTOR
}

/**
 * The keys of a run's configuration that tell the graph for whom it acts. The runtime keeps the configuration of a run for
 * the next runs of the thread, so each run has all of these keys: null replaces what an earlier run left.
 */
export function callerKeys(
  job: SlimJob,
  identify: JobContext['identify'],
): { caller: JsonObject | null; user_id: string | null } {
  if (identify === null) return { caller: null, user_id: null }
  const { created_by: owner, actor, scopes, id: job_id, type, project_id } = job
  const user_id = owner === null ? null : identify(owner)
  const kind = owner === null ? null : isOfPerson(owner) ? 'user' : 'service_account'
  const caller = {
    user_id,
    kind,
    scopes: JSON.parse(scopes ?? '[]') as string[],
    actor: actor === null ? null : identify(actor),
    job_id,
    type,
    project_id,
  }
  return { caller, user_id }
}
