import type { ClientBase } from 'pg'

/** A pooler may accept the connection although its server is down. */
const TIMEOUT_MS = 3_000

/**
 * Call it with each new connection. An address may lead to a standby for a moment, for example during a failover. A
 * connection that stayed there would fail every write and read old data, until the process is restarted.
 */
export async function refuseReadOnly(client: ClientBase): Promise<void> {
  const show = { text: 'show transaction_read_only', query_timeout: TIMEOUT_MS }
  const { rows } = await client.query<{ transaction_read_only: string }>(show)
  if (rows[0]?.transaction_read_only !== 'on') return
  throw new Error('the server is read-only: it is a standby, or default_transaction_read_only is on')
}
