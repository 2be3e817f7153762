import { KeySet } from '../auth/key-set.ts'
import type { Config } from '../config.ts'
import { parseConfig } from '../config.ts'
import { ConfigError } from '../config-reader.ts'
import { Breaker } from '../core/async/breaker.ts'
import { systemClock } from '../core/clock.ts'
import { silentLog } from '../core/log.ts'
import { pendingMigrations } from '../db/migrate.ts'
import { type CommandLine, EXIT, type ExitCode, reasonOf } from './io.ts'
import { loadJobTypes } from './startup/load-job-types.ts'
import { openDatabase } from './startup/open-database.ts'

const INDENT = ' '.repeat(16)

interface Finding {
  ok: boolean
  text: string
  mend?: string
}

/** Checks every dependency the way the service will use it, and says what to mend. */
export async function doctor(line: CommandLine): Promise<ExitCode> {
  const config = parseConfig(line.env, line.readFile)
  const checks: Record<string, (config: Config) => Promise<Finding>> = {
    issuer: checkIssuer,
    database: checkDatabase,
    redis: checkRedis,
    runtime: checkRuntime,
    callbacks: checkCallbacks,
    'job types': async () => checkJobTypes(line),
    push: checkPush,
  }
  let failed = false
  for (const [name, check] of Object.entries(checks)) {
    const { ok, text, mend } = await check(config).catch((error: unknown) => asFinding(name, error))
    failed ||= !ok
    line.print(`${ok ? 'ok  ' : 'FAIL'}  ${name.padEnd(9)} ${text.replaceAll(/\n\s*/g, `\n${INDENT}`)}`)
    if (mend) line.print(`${INDENT}→ ${mend}`)
  }
  return failed ? EXIT.unavailable : EXIT.ok
}

async function checkIssuer(config: Config): Promise<Finding> {
  const url = `${config.issuerUrl.replace(/\/$/, '')}/.well-known/jwks.json`
  const keySet = new KeySet({ url, fetch, clock: systemClock, log: silentLog })
  await keySet.warmUp()
  const { keys, lastError } = keySet.state()
  await keySet.close()
  if (keys > 0) return { ok: true, text: `${keys} usable keys at ${url}` }
  return {
    ok: false,
    text: `${url}: ${lastError ?? 'no usable key'}`,
    mend: 'Check ISSUER_URL, or COGNITO_REGION and COGNITO_USER_POOL_ID, and that this host may reach it',
  }
}

async function checkDatabase(config: Config): Promise<Finding> {
  const opened = await openDatabase(config.database)
  try {
    await opened.db.ping()
    const pending = await pendingMigrations(opened.db)
    return pending.length === 0
      ? { ok: true, text: `${opened.db.engine}, schema up to date` }
      : {
          ok: true,
          text: `${opened.db.engine}, ${pending.length} migrations pending`,
          mend: 'They run at the next start, or with `migrate`',
        }
  } finally {
    await opened.close()
  }
}

async function checkRedis(config: Config): Promise<Finding> {
  if (config.redisUrl === null) return { ok: true, text: 'not configured: rate limits are counted per process' }
  const { pingRedis } = await import('../limits/redis-ping.ts')
  await pingRedis(config.redisUrl)
  return { ok: true, text: 'answers' }
}

async function checkRuntime(config: Config): Promise<Finding> {
  if (config.runtime === null)
    return { ok: true, text: 'not configured: jobs cannot be started, callbacks still settle' }
  const { RuntimeClient } = await import('../runtime/runtime-client.ts')
  const breaker = new Breaker({ clock: systemClock, threshold: 1, openMs: 1, maxOpenMs: 1 })
  await new RuntimeClient({ ...config.runtime, fetch, clock: systemClock, breaker }).ping()
  return { ok: true, text: `answers at ${config.runtime.url}` }
}

async function checkCallbacks(config: Config): Promise<Finding> {
  if (config.webhookSecrets.length === 0) {
    return { ok: !config.production, text: 'no WEBHOOK_SECRET: anyone may post callbacks', mend: 'Set WEBHOOK_SECRET' }
  }
  if (config.runtime !== null && config.publicUrl === null) {
    return {
      ok: true,
      text: 'no PUBLIC_URL: runs end without a callback, and are found by asking',
      mend: 'Set PUBLIC_URL to the address the runtime reaches this service at',
    }
  }
  return { ok: true, text: config.publicUrl ?? 'no runtime to call back' }
}

/** The graphs are not asked for: which of them a runtime knows may change while it runs. */
function checkJobTypes(line: CommandLine): Finding {
  const names = [...loadJobTypes(line).jobTypes.keys()]
  return { ok: true, text: names.join(', ') }
}

/** A made-up device: that the provider refuses it proves that it lets us in. */
async function checkPush(config: Config): Promise<Finding> {
  if (config.push === null) return { ok: true, text: 'not configured: deliveries wait for credentials' }
  const { createFcmSender } = await import('../push/fcm/fcm-sender.ts')
  const { pushApiUrl: apiUrl, pushTokenUrl: tokenUrl, push: credentials } = config
  const sender = createFcmSender({ credentials, apiUrl, tokenUrl, clock: systemClock, log: silentLog })
  const message = { token: 'doctor', title: 'doctor', body: '', data: {}, tag: 'doctor', link: null } as const
  const limits = { priority: 'normal', ttlSeconds: 60, dryRun: true } as const
  const verdict = await sender.send({ ...message, ...limits }, new AbortController().signal)
  await sender.close()
  if (verdict.kind === 'halt' || verdict.kind === 'retry') {
    return { ok: false, text: verdict.reason, ...(MENDS.push ? { mend: MENDS.push } : {}) }
  }
  return { ok: true, text: `a dry run got through to project ${config.push.projectId}` }
}

const MENDS: Record<string, string> = {
  'job types': 'Mend the file, or point JOB_TYPES_FILE to another; until then `serve` does not start',
  database: 'Check DATABASE_URL (or DATA_DIR), that the server is up, and that this host and user may use it',
  push: 'Check PUSH_PROJECT_ID, PUSH_CLIENT_EMAIL and PUSH_PRIVATE_KEY, and that this host may reach the provider',
  runtime: 'Check RUNTIME_URL and RUNTIME_API_KEY, and that this host may reach it',
  redis: 'Check REDIS_URL, and that the server is up; until then every process counts rate limits alone',
}

function asFinding(name: string, error: unknown): Finding {
  const text = error instanceof ConfigError ? error.faults.join('\n') : reasonOf(error)
  return { ok: false, text, mend: MENDS[name] ?? 'See docs/configuration.md' }
}
