import { createPrivateKey, createPublicKey, generateKeyPairSync, randomBytes } from 'node:crypto'
import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join, resolve } from 'node:path'
import type { SigningKey } from '../../sandbox/identity-provider/token-mint.ts'

const KEPT_FOLDER = 'data/dev'
const KEYS_FILE = 'dev-keys.json'

/** The folder of `dev`, and the secrets that must stay the same for its data and tokens to stay valid. */
export interface DevData {
  folder: string
  /** Absent: the identity provider creates a new key. */
  signingKey?: SigningKey
  webhookSecret: string
  release(): void
}

/** A temporary folder, removed at the end. With `keep`, a folder that stays, with the keys of the sandbox in it. */
export function openDevData({ keep, dataDir }: { keep: boolean; dataDir: string | undefined }): DevData {
  if (!keep) {
    const folder = mkdtempSync(join(tmpdir(), 'project-api-dev-'))
    return {
      folder,
      webhookSecret: newSecret(),
      release: () => rmSync(folder, { recursive: true, force: true }),
    }
  }
  const folder = resolve(dataDir ?? KEPT_FOLDER)
  mkdirSync(folder, { recursive: true, mode: 0o700 })
  const { kid, private_key, webhook_secret } = readKeys(join(folder, KEYS_FILE))
  const privateKey = createPrivateKey(private_key)
  return {
    folder,
    signingKey: { kid, privateKey, publicKey: createPublicKey(privateKey) },
    webhookSecret: webhook_secret,
    release: () => {},
  }
}

interface KeptKeys {
  kid: string
  private_key: string
  webhook_secret: string
}

function readKeys(file: string): KeptKeys {
  try {
    return JSON.parse(readFileSync(file, 'utf8')) as KeptKeys
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== 'ENOENT') throw error
  }
  const { privateKey } = generateKeyPairSync('rsa', { modulusLength: 2048 })
  const keys: KeptKeys = {
    kid: randomBytes(32).toString('base64'),
    private_key: privateKey.export({ type: 'pkcs8', format: 'pem' }).toString(),
    webhook_secret: newSecret(),
  }
  writeFileSync(file, JSON.stringify(keys), { mode: 0o600 })
  return keys
}

function newSecret(): string {
  return randomBytes(24).toString('base64url')
}
