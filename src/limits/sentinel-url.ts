interface SentinelSettings {
  sentinels: { host: string; port: number }[]
  /** The name of the master. */
  name: string
  username?: string
  password?: string
  db?: number
}

const DEFAULT_SENTINEL_PORT = 26379

const SENTINEL_URL =
  /^rediss?\+sentinel:\/\/(?:(?<user>[^:@/]*)(?::(?<password>[^@/]*))?@)?(?<hosts>[^/?#@]+)\/(?<name>[^/?#]+)(?:\/(?<db>\d+))?$/

/** Reads `redis+sentinel://[user[:password]@]host[:port],host[:port]/master[/db]`. Null for any other URL. */
export function parseSentinelUrl(url: string): SentinelSettings | null {
  const { user, password, hosts, name, db } = SENTINEL_URL.exec(url)?.groups ?? {}
  if (![user, password, name].every(isDecodable)) return null
  if (hosts === undefined || name === undefined) return null
  const sentinels = hosts.split(',').map(parseAddress)
  if (sentinels.some(({ host, port }) => host === '' || port > 65_535)) return null
  return {
    sentinels,
    name: decodeURIComponent(name),
    ...(user ? { username: decodeURIComponent(user) } : {}),
    ...(password ? { password: decodeURIComponent(password) } : {}),
    ...(db === undefined ? {} : { db: Number(db) }),
  }
}

function isDecodable(text = ''): boolean {
  try {
    return decodeURIComponent(text) !== null
  } catch {
    return false
  }
}

function parseAddress(text: string): { host: string; port: number } {
  const [, host = '', port] = /^(\[[0-9a-f:.]+\]|[^:[\]]+)(?::(\d+))?$/i.exec(text) ?? []
  return { host: host.replace(/^\[|\]$/g, ''), port: port === undefined ? DEFAULT_SENTINEL_PORT : Number(port) }
}
