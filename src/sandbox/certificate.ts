import { createPublicKey, generateKeyPair, type KeyObject, sign } from 'node:crypto'
import { isIPv4, isIPv6 } from 'node:net'
import { promisify } from 'node:util'
import { systemRandom } from '../core/random.ts'

const DAY_MS = 86_400_000
const generateKeys = promisify(generateKeyPair)

/** The tags of DER that a certificate needs. */
const TAG = { boolean: 1, integer: 2, bits: 3, octets: 4, oid: 6, utf8: 12, sequence: 0x30, set: 0x31, utcTime: 0x17 }
const ECDSA_WITH_SHA256 = [0x2a, 0x86, 0x48, 0xce, 0x3d, 0x04, 0x03, 0x02]
const COMMON_NAME = [0x55, 0x04, 0x03]
const SUBJECT_ALT_NAME = [0x55, 0x1d, 0x11]
const BASIC_CONSTRAINTS = [0x55, 0x1d, 0x13]
const KEY_USAGE = [0x55, 0x1d, 0x0f]
const EXTENDED_KEY_USAGE = [0x55, 0x1d, 0x25]
const SERVER_AUTH = [0x2b, 0x06, 0x01, 0x05, 0x05, 0x07, 0x03, 0x01]
/** digitalSignature and keyCertSign, with two bits unused. */
const SIGNS_AND_CERTIFIES = [0x02, 0x84]

export interface Certificate {
  /** Both in PEM form. The certificate is its own authority: a client that trusts it trusts the server. */
  cert: string
  key: string
}

/** Creates a self-signed certificate for these names and addresses, without any external tool. */
export async function selfSignedCertificate(names: readonly string[], nowMs: number): Promise<Certificate> {
  const { privateKey } = await generateKeys('ec', { namedCurve: 'P-256' })
  const algorithm = sequence(der(TAG.oid, Buffer.from(ECDSA_WITH_SHA256)))
  const content = toBeSigned({ privateKey, names, nowMs, algorithm })
  const signature = sign('sha256', content, privateKey)
  const certificate = sequence(content, algorithm, bits(signature))
  const lines = certificate.toString('base64').match(/.{1,64}/g) ?? []
  return {
    cert: ['-----BEGIN CERTIFICATE-----', ...lines, '-----END CERTIFICATE-----', ''].join('\n'),
    key: privateKey.export({ type: 'pkcs8', format: 'pem' }).toString(),
  }
}

interface Content {
  privateKey: KeyObject
  names: readonly string[]
  nowMs: number
  algorithm: Buffer
}

function toBeSigned({ privateKey, names, nowMs, algorithm }: Content): Buffer {
  const name = sequence(
    der(TAG.set, sequence(der(TAG.oid, Buffer.from(COMMON_NAME)), der(TAG.utf8, Buffer.from('Sandbox push provider')))),
  )
  // A first byte between 1 and 127 keeps the serial number positive and in its shortest form.
  const serial = Buffer.concat([Buffer.from([0x51]), systemRandom.bytes(15)])
  const extensions = sequence(
    extension(BASIC_CONSTRAINTS, { critical: true, value: sequence(der(TAG.boolean, Buffer.from([0xff]))) }),
    extension(KEY_USAGE, { critical: true, value: der(TAG.bits, Buffer.from(SIGNS_AND_CERTIFIES)) }),
    extension(EXTENDED_KEY_USAGE, { critical: false, value: sequence(der(TAG.oid, Buffer.from(SERVER_AUTH))) }),
    extension(SUBJECT_ALT_NAME, { critical: false, value: sequence(...names.map(alternativeName)) }),
  )
  return sequence(
    tagged(0, der(TAG.integer, Buffer.from([2]))),
    der(TAG.integer, serial),
    algorithm,
    name,
    sequence(utcTime(nowMs - DAY_MS), utcTime(nowMs + 365 * DAY_MS)),
    name,
    createPublicKey(privateKey).export({ type: 'spki', format: 'der' }),
    tagged(3, extensions),
  )
}

function extension(oid: number[], { critical, value }: { critical: boolean; value: Buffer }): Buffer {
  const flag = critical ? [der(TAG.boolean, Buffer.from([0xff]))] : []
  return sequence(der(TAG.oid, Buffer.from(oid)), ...flag, der(TAG.octets, value))
}

function alternativeName(name: string): Buffer {
  if (isIPv4(name)) return der(0x87, Buffer.from(name.split('.').map(Number)))
  if (name === '::1') return der(0x87, Buffer.from([...new Uint8Array(15), 1]))
  if (isIPv6(name)) throw new Error(`Of the IPv6 addresses only ::1 is for the sandbox, not ${name}`)
  return der(0x82, Buffer.from(name))
}

function utcTime(ms: number): Buffer {
  const digits = new Date(ms).toISOString().replace(/\D/g, '')
  return der(TAG.utcTime, Buffer.from(`${digits.slice(2, 14)}Z`))
}

function sequence(...parts: Buffer[]): Buffer {
  return der(TAG.sequence, Buffer.concat(parts))
}

function tagged(index: number, content: Buffer): Buffer {
  return der(0xa0 + index, content)
}

function bits(content: Buffer): Buffer {
  return der(TAG.bits, Buffer.concat([Buffer.from([0]), content]))
}

function der(tag: number, content: Buffer): Buffer {
  return Buffer.concat([Buffer.from([tag, ...lengthOf(content)]), content])
}

function lengthOf({ length }: Buffer): number[] {
  if (length < 0x80) return [length]
  return length < 0x100 ? [0x81, length] : [0x82, length >> 8, length & 0xff]
}
