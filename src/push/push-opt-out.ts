import type { Sql } from '../db/sql.ts'

/**
 * A SQL condition: the user with this `sub` turned push off. It becomes part of push's own statement, so that the
 * preference and the devices are read at the same moment.
 */
export type PushOptOut = (subject: Sql) => Sql
