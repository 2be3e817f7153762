import { isIP, type LookupFunction, type Socket } from 'node:net'
import { EgressError } from './egress-port.ts'
import { isAllowedAddress, Networks } from './public-address.ts'
import { type Resolve, resolveName } from './resolve-name.ts'

const NOT_PUBLIC = 'the address is not public'

interface EgressGuardOptions {
  /** Networks that may be connected to although they are not public. */
  allow: readonly string[]
  /** In development. */
  allowHttp: boolean
  /** Absent: as the system does. */
  resolve?: Resolve
}

/**
 * Decides which addresses a caller may make this service connect to. It checks a literal address before the connection,
 * every address of a name, and the address that a socket is really connected to.
 */
export class EgressGuard {
  readonly #allowed: Networks
  readonly #allowHttp: boolean
  readonly #resolve: Resolve

  constructor({ allow, allowHttp, resolve = resolveName }: EgressGuardOptions) {
    this.#allowed = new Networks(allow)
    this.#allowHttp = allowHttp
    this.#resolve = resolve
  }

  /** Why a URL is refused before any connection; null if it may be tried. */
  faultOf(text: string): string | null {
    const url = URL.parse(text)
    if (url === null) return 'must be a URL'
    if (url.protocol !== 'https:' && !(this.#allowHttp && url.protocol === 'http:')) return 'must begin with https://'
    if (url.username !== '' || url.password !== '') return 'must not contain a user name or a password'
    if (url.hash !== '') return 'must not contain a fragment'
    const host = url.hostname.replace(/^\[(.*)\]$/, '$1')
    return isIP(host) === 0 || this.allows(host) ? null : 'must have a public address'
  }

  allows(address: string): boolean {
    return isAllowedAddress(address, this.#allowed)
  }

  /** Resolves a name for `net.connect`. One address that is not allowed refuses the name, whatever the others are. */
  readonly lookup: LookupFunction = (name, options, callback) => {
    this.#resolve(name).then(
      (found) => {
        const [first] = found
        if (first === undefined) return callback(new Error(`${name} has no address`), '', 0)
        if (!found.every(({ address }) => this.allows(address))) return callback(new EgressError(NOT_PUBLIC), '', 0)
        if (options.all) callback(null, [...found])
        else callback(null, first.address, first.family)
      },
      (error: Error) => callback(error, '', 0),
    )
  }

  /** Refuses a socket that is connected to an address that is not allowed, before anything is sent on it. */
  watch(socket: Socket, refuse: (error: Error) => void): void {
    socket.prependOnceListener('connect', () => {
      if (!this.allows(socket.remoteAddress ?? '')) refuse(new EgressError(NOT_PUBLIC))
    })
  }
}
