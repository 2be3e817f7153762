import { sign } from 'node:crypto'
import { readRsaPrivateKey } from '../../core/rsa-key.ts'

const SCOPE = 'https://www.googleapis.com/auth/firebase.messaging'
const LIFETIME_SECONDS = 3600

export interface FcmCredentials {
  projectId: string
  clientEmail: string
  privateKey: string
}

/** Signs the assertion that a service account exchanges for an access token; null when its key is not an RSA private key. */
export function createAssertionSigner(
  { clientEmail, privateKey }: FcmCredentials,
  tokenUrl: string,
): ((nowMs: number) => string) | null {
  const key = readRsaPrivateKey(privateKey)
  if (key === null) return null
  return (nowMs) => {
    const iat = Math.floor(nowMs / 1000)
    const claims = { iss: clientEmail, scope: SCOPE, aud: tokenUrl, iat, exp: iat + LIFETIME_SECONDS }
    const input = `${encode({ alg: 'RS256', typ: 'JWT' })}.${encode(claims)}`
    return `${input}.${sign('sha256', Buffer.from(input), key).toString('base64url')}`
  }
}

function encode(value: object): string {
  return Buffer.from(JSON.stringify(value)).toString('base64url')
}
