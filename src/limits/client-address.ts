import { BlockList, isIP, isIPv4 } from 'node:net'

/** The shared key of all callers whose address is unknown. */
const ANONYMOUS = 'anonymous'

const GROUPS = 8
const NETWORK_GROUPS = 4

/**
 * The key under which an address is counted: an IPv4 address as it is, an IPv6 address by its /64, since one subscriber
 * holds a whole /64 and could otherwise change address with every request. All spellings of an address have the same key.
 */
export function addressKey(text: string | undefined): string {
  const address = bareAddress(text ?? '')
  if (address === null) return ANONYMOUS
  if (isIPv4(address)) return address
  const groups = parseGroups(address)
  return embeddedIPv4(groups) ?? networkText(groups)
}

/** Whether an address belongs to a trusted proxy, whose `X-Forwarded-For` is used. */
export function trustedProxies(networks: readonly string[]): (address: string) => boolean {
  const trusted = new BlockList()
  for (const network of networks) {
    const [address = '', prefix] = network.split('/')
    const family = isIPv4(address) ? 'ipv4' : 'ipv6'
    trusted.addSubnet(address, Number(prefix ?? (family === 'ipv4' ? 32 : 128)), family)
  }
  return (text) => {
    const address = bareAddress(text)
    return address !== null && trusted.check(address, isIPv4(address) ? 'ipv4' : 'ipv6')
  }
}

const WITH_PORT = /^(?:\[(?<bracketed>[^\]]*)\](?::\d{1,5})?|(?<plain>(?:::ffff:)?[\d.]+):\d{1,5})$/i

/** Proxies forward `192.0.2.1:4112`, `[2001:db8::1]:443`, an address with a zone, any of them in quotes. Null: no address. */
function bareAddress(text: string): string | null {
  if (isIPv4(text)) return text
  const unquoted = text.trim().replace(/^"(.*)"$/, '$1')
  const { bracketed, plain } = WITH_PORT.exec(unquoted)?.groups ?? {}
  const [address = ''] = (bracketed ?? plain ?? unquoted).split('%', 1)
  return isIP(address) === 0 ? null : address
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

/**
 * RFC 5952 text. The lower half is always zero and thus the longest run of zeros, so `::` replaces it and the zeros before
 * it.
 */
function networkText(groups: readonly number[]): string {
  const network = groups.slice(0, NETWORK_GROUPS)
  while (network.at(-1) === 0) network.pop()
  return `${network.map((group) => group.toString(16)).join(':')}::/64`
}
