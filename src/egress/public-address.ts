import { BlockList, isIP } from 'node:net'

/**
 * Ranges of IPv4 that do not lead to a host of the public internet (RFC 6890 and the registry of IANA), and the address
 * at which Azure has its host agent.
 */
const NOT_PUBLIC_V4 = [
  '0.0.0.0/8',
  '10.0.0.0/8',
  '100.64.0.0/10',
  '127.0.0.0/8',
  '168.63.129.16/32',
  '169.254.0.0/16',
  '172.16.0.0/12',
  '192.0.0.0/24',
  '192.0.2.0/24',
  '192.88.99.0/24',
  '192.168.0.0/16',
  '198.18.0.0/15',
  '198.51.100.0/24',
  '203.0.113.0/24',
  '224.0.0.0/4',
  '240.0.0.0/4',
]
/** All of IPv6 that is public, and the ranges in it that are not: Teredo and other protocols, documentation, 6to4. */
const GLOBAL_V6 = '2000::/3'
const NOT_PUBLIC_V6 = ['2001::/23', '2001:db8::/32', '2002::/16', '3fff::/20']
/** Addresses that stand for an address of IPv4, in their last four bytes: mapped addresses, and NAT64. */
const CARRIES_V4 = ['::ffff:0:0/96', '64:ff9b::/96']

/** A list of networks, such as `10.0.0.0/8` or `::1`. */
export class Networks {
  readonly #list = new BlockList()

  constructor(networks: readonly string[]) {
    for (const network of networks) {
      const [address = '', prefix] = network.split('/')
      const family = familyOf(address)
      this.#list.addSubnet(address, Number(prefix ?? (family === 'ipv4' ? 32 : 128)), family)
    }
  }

  has(address: string): boolean {
    return this.#list.check(address, familyOf(address))
  }
}

const notPublicV4 = new Networks(NOT_PUBLIC_V4)
const globalV6 = new Networks([GLOBAL_V6])
const notPublicV6 = new Networks(NOT_PUBLIC_V6)
const carriesV4 = new Networks(CARRIES_V4)

/** Whether an IP address leads to the public internet, or to one of the allowed networks. Anything else is refused. */
export function isAllowedAddress(address: string, allowed: Networks): boolean {
  const plain = address.replace(/%.*$/, '')
  if (isIP(plain) === 0) return false
  if (allowed.has(plain)) return true
  if (isIP(plain) === 4) return !notPublicV4.has(plain)
  if (carriesV4.has(plain)) return isAllowedAddress(carriedV4(plain), allowed)
  return globalV6.has(plain) && !notPublicV6.has(plain)
}

/** The URL parser writes an address of IPv6 in one way: the last two groups are the address of IPv4. */
function carriedV4(address: string): string {
  const [high = '0', low = '0'] = new URL(`http://[${address}]`).hostname.slice(1, -1).split(':').slice(-2)
  const bytes = [high || '0', low || '0'].flatMap((group) => {
    const value = Number.parseInt(group, 16)
    return [value >> 8, value & 0xff]
  })
  return bytes.join('.')
}

function familyOf(address: string): 'ipv4' | 'ipv6' {
  return isIP(address) === 4 ? 'ipv4' : 'ipv6'
}
