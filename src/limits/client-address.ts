import { isIPv4, isIPv6 } from 'node:net'

/** Stands for every caller whose address is unknown. */
export const ANONYMOUS = 'anonymous'

const GROUPS = 8
const NETWORK_GROUPS = 4

/**
 * The key under which an address is counted: an IPv4 address as it is, an IPv6 address by its /64, since one subscriber
 * holds a whole /64 and could otherwise change address with every request. One address has one key, however it is written.
 */
export function addressKey(ip: string | undefined): string {
  if (ip === undefined) return ANONYMOUS
  if (isIPv4(ip)) return ip
  if (!isIPv6(ip)) return ANONYMOUS
  const groups = parseGroups(ip.split('%', 1)[0] ?? '')
  return embeddedIPv4(groups) ?? networkText(groups)
}

/** The eight 16-bit groups of a valid IPv6 address. */
function parseGroups(address: string): number[] {
  const [head = '', tail] = address.split('::')
  const before = parseRun(head)
  if (tail === undefined) return before
  const after = parseRun(tail)
  return [...before, ...new Array<number>(GROUPS - before.length - after.length).fill(0), ...after]
}

function parseRun(text: string): number[] {
  if (text === '') return []
  return text.split(':').flatMap((group) => {
    if (!group.includes('.')) return [Number.parseInt(group, 16)]
    const [a = 0, b = 0, c = 0, d = 0] = group.split('.').map(Number)
    return [a * 256 + b, c * 256 + d]
  })
}

/** A dual-stack socket reports IPv4 callers as ::ffff:a.b.c.d, possibly written in hexadecimal. */
function embeddedIPv4(groups: readonly number[]): string | undefined {
  const [high = 0, low = 0] = groups.slice(6)
  const isMapped = groups[5] === 0xffff && groups.slice(0, 5).every((group) => group === 0)
  return isMapped ? [high >> 8, high & 255, low >> 8, low & 255].join('.') : undefined
}

/** RFC 5952 text; the zeros of the lower half are always the longest run, so they and those before them make the `::`. */
function networkText(groups: readonly number[]): string {
  const network = groups.slice(0, NETWORK_GROUPS)
  while (network.at(-1) === 0) network.pop()
  return `${network.map((group) => group.toString(16)).join(':')}::/64`
}
