import { generateKeyPairSync, type KeyObject } from 'node:crypto'

export interface RsaPair {
  publicKey: KeyObject
  privateKey: KeyObject
}

const made = new Map<string, RsaPair>()

/** One pair for each name, made once in a process: making one takes longer than most tests. */
export function rsaPair(name: string, { bits = 2048, exponent = 65_537 } = {}): RsaPair {
  const pair = made.get(name) ?? generateKeyPairSync('rsa', { modulusLength: bits, publicExponent: exponent })
  made.set(name, pair)
  return pair
}

/** For a provider that makes keys: each of its keys is another, and the next provider gets the same ones. */
export function lendRsaPairs(): () => Promise<RsaPair> {
  let lent = 0
  return async () => {
    lent += 1
    return rsaPair(`lent ${lent}`)
  }
}
