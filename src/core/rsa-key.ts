import { createPrivateKey, type KeyObject } from 'node:crypto'

/** The RSA private key in a PEM block; null for anything else. */
export function readRsaPrivateKey(pem: string): KeyObject | null {
  try {
    const key = createPrivateKey(pem)
    return key.asymmetricKeyType === 'rsa' ? key : null
  } catch {
    // OpenSSL's error does not help the operator, and it could contain parts of the key, which must not be logged.
    return null
  }
}
