import { createPrivateKey, type KeyObject } from 'node:crypto'

/** The RSA private key in a PEM block; null for anything else. */
export function readRsaPrivateKey(pem: string): KeyObject | null {
  try {
    const key = createPrivateKey(pem)
    return key.asymmetricKeyType === 'rsa' ? key : null
  } catch {
    // OpenSSL's words would not help anybody, and its input is not for the log.
    return null
  }
}
