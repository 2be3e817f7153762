import type { ClientBase } from 'pg'

/**
 * Call it with each new connection. An address may lead to a standby for a moment, for example during a failover. A
 * connection that stayed there would fail every write and read old data, until the process is restarted.
 */
export async function refuseReadOnly(client: ClientBase): Promise<void> {
  const { rows } = await client.query<{ transaction_read_only: string }>('show transaction_read_only')
  if (rows[0]?.transaction_read_only !== 'on') return
  throw new Error('the server is read-only: it is a standby, or default_transaction_read_only is on')
}
