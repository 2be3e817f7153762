/** Why a token was refused. A short fixed list, safe as a metric label. The client only sees `Invalid or expired token`. */
export type TokenFaultReason =
  | 'too_long'
  | 'malformed'
  | 'header'
  | 'algorithm'
  | 'claims'
  | 'issuer'
  | 'audience'
  | 'client'
  | 'token_use'
  | 'expired'
  | 'not_yet_valid'
  | 'unknown_key'
  | 'signature'

export class TokenFault extends Error {
  readonly reason: TokenFaultReason

  constructor(reason: TokenFaultReason, message: string, options?: ErrorOptions) {
    super(message, options)
    this.name = 'TokenFault'
    this.reason = reason
  }
}
