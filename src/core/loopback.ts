import { isIPv4 } from 'node:net'

/**
 * Whether a host name or address always means this machine. A name that DNS resolves does not count: it may point elsewhere
 * later.
 */
export function isLoopbackHost(host: string): boolean {
  const name = host.toLowerCase().replace(/^\[(.*)\]$/, '$1')
  return name === 'localhost' || name === '::1' || (isIPv4(name) && name.startsWith('127.'))
}

/** The same for the address of a connection. A dual-stack socket reports IPv4 addresses as ::ffff:a.b.c.d. */
export function isLoopbackAddress(address: string | undefined): boolean {
  return address !== undefined && isLoopbackHost(address.replace(/^::ffff:/i, ''))
}

/** The same for a `Host` header, which may have a port. */
export function isLoopbackAuthority(authority: string | undefined): boolean {
  const host = URL.parse(`http://${authority}`)?.hostname
  return host !== undefined && isLoopbackHost(host)
}
