import assert from 'node:assert/strict'
import { generateKeyPairSync } from 'node:crypto'
import { describe, test } from 'node:test'
import { isCognitoIssuer } from '../../src/auth/issuer/cognito.ts'
import { type Config, parseConfig, requiredAudiences } from '../../src/config.ts'
import { ConfigError, type Env } from '../../src/config-reader.ts'

const { privateKey } = generateKeyPairSync('rsa', { modulusLength: 2048 })
const PEM = privateKey.export({ type: 'pkcs8', format: 'pem' }).toString().trim()

/** The fewest settings that a strict start takes. */
const SECRET = '24 bytes and not one less'.slice(0, 24)
const KEY = `whsec_${Buffer.alloc(24, 0xfb).toString('base64')}`
const SOUND = { ISSUER_URL: 'https://login.example.com/pool', WEBHOOK_SECRET: SECRET }

function parse(env: Env, files: Record<string, string> = {}): Config {
  return parseConfig(env, (path) => {
    const content = files[path]
    if (content === undefined) throw Object.assign(new Error(`no such file: ${path}`), { code: 'ENOENT' })
    return content
  })
}

function faultsOf(env: Env, files: Record<string, string> = {}): readonly string[] {
  try {
    parse(env, files)
    return []
  } catch (error) {
    assert.ok(error instanceof ConfigError)
    for (const fault of error.faults) assert.ok(error.message.includes(fault))
    return error.faults
  }
}

test('every setting has its documented default if it is not set', () => {
  assert.deepEqual(parse(SOUND), {
    production: true,
    host: '127.0.0.1',
    port: 8080,
    publicUrl: null,
    variant: 'B',
    issuerUrl: 'https://login.example.com/pool',
    clientIds: [],
    tokenUse: null,
    tokenAlgorithms: ['RS256'],
    tokenAudience: null,
    scopesClaim: 'custom:scopes',
    scopesMap: [],
    clockToleranceSeconds: 0,
    database: { engine: 'sqlite', dataDir: './data' },
    redisUrl: null,
    redisPrefix: '',
    runtime: null,
    runtimeIdentity: { mode: 'sub', secret: null },
    webhookSecrets: [SECRET],
    jobTypesFile: 'job-types.json',
    push: null,
    pushApiUrl: null,
    pushTokenUrl: null,
    limits: { unauthenticated: 100, authenticated: 1000, service: 10_000 },
    rateLimitHeaders: 'draft-6',
    trustProxy: [],
    egressAllow: [],
    corsOrigins: [],
    console: { clientId: null, authUrl: null, scope: 'openid' },
    usageLimitRuns: null,
    maxUnfinishedJobs: 1000,
    maxProjects: null,
    eventsRetentionHours: 168,
    historyRetentionDays: null,
    jobRetentionDays: null,
    auditRetentionDays: 365,
    shutdownTimeoutMs: 10_000,
    logLevel: 'info',
    tracesEndpoint: null,
    metricsPublic: false,
  })
})

const TAKEN: [settings: Env, part: Partial<Config>][] = [
  [
    { HOST: '0.0.0.0', PORT: '0' },
    { host: '0.0.0.0', port: 0 },
  ],
  [{ PORT: '65535' }, { port: 65_535 }],
  [{ PUBLIC_URL: 'https://api.example.com/base//' }, { publicUrl: 'https://api.example.com/base' }],
  [{ API_VARIANT: 'A' }, { variant: 'A' }],
  [{ COGNITO_CLIENT_IDS: 'one, two,,' }, { clientIds: ['one', 'two'] }],
  [{ TOKEN_USE: 'access' }, { tokenUse: 'access' }],
  [{ TOKEN_ALGORITHMS: 'ES256, EdDSA,PS256' }, { tokenAlgorithms: ['ES256', 'EdDSA', 'PS256'] }],
  [{ TOKEN_AUDIENCE: 'https://api.example.com/, api' }, { tokenAudience: ['https://api.example.com/', 'api'] }],
  [{ SCOPES_CLAIM: 'permissions' }, { scopesClaim: 'permissions' }],
  [
    { SCOPES_MAP: 'editor=read:projects write:projects, urn:x=1 = admin:*' },
    { scopesMap: ['editor=read:projects write:projects', 'urn:x=1 = admin:*'] },
  ],
  [{ CLOCK_TOLERANCE_SECONDS: '300' }, { clockToleranceSeconds: 300 }],
  [{ DATA_DIR: '/srv/data' }, { database: { engine: 'sqlite', dataDir: '/srv/data' } }],
  [
    { DATABASE_URL: 'postgres://a:b@db/x', DATA_DIR: '/srv/data' },
    { database: { engine: 'postgres', url: 'postgres://a:b@db/x', poolSize: 10, prepared: true } },
  ],
  [
    { DATABASE_URL: 'postgresql://db/x', DATABASE_POOL_SIZE: '25', DATABASE_PREPARED: 'off' },
    { database: { engine: 'postgres', url: 'postgresql://db/x', poolSize: 25, prepared: false } },
  ],
  [
    { REDIS_URL: 'redis+sentinel://u:p@one:26379,two/main/2', REDIS_PREFIX: 'api:' },
    { redisUrl: 'redis+sentinel://u:p@one:26379,two/main/2', redisPrefix: 'api:' },
  ],
  [{ REDIS_URL: 'rediss://cache:6380/1' }, { redisUrl: 'rediss://cache:6380/1' }],
  [
    { RUNTIME_URL: 'http://runtime:8123/', RUNTIME_API_KEY: 'k', RUNTIME_TIMEOUT_MS: '500' },
    { runtime: { url: 'http://runtime:8123', apiKey: 'k', timeoutMs: 500 } },
  ],
  [{ RUNTIME_IDENTITY: 'none' }, { runtimeIdentity: { mode: 'none', secret: null } }],
  [
    { RUNTIME_IDENTITY: 'pseudonym', RUNTIME_IDENTITY_SECRET: SECRET },
    { runtimeIdentity: { mode: 'pseudonym', secret: SECRET } },
  ],
  [{ RUNTIME_URL: 'http://runtime' }, { runtime: { url: 'http://runtime', apiKey: null, timeoutMs: 3000 } }],
  [{ WEBHOOK_SECRET: `${KEY}, ${SECRET}` }, { webhookSecrets: [KEY, SECRET] }],
  [{ PUSH_API_URL: 'http://127.0.0.1:9/' }, { pushApiUrl: 'http://127.0.0.1:9' }],
  [{ PUSH_TOKEN_URL: 'http://127.0.0.1:9/token' }, { pushTokenUrl: 'http://127.0.0.1:9/token' }],
  [
    { RATE_LIMIT_UNAUTHENTICATED: '1', RATE_LIMIT_AUTHENTICATED: '2', RATE_LIMIT_SERVICE: '3' },
    { limits: { unauthenticated: 1, authenticated: 2, service: 3 } },
  ],
  [{ RATE_LIMIT_HEADERS: 'draft-8' }, { rateLimitHeaders: 'draft-8' }],
  [{ EGRESS_ALLOW: '10.0.0.0/8, ::1' }, { egressAllow: ['10.0.0.0/8', '::1'] }],
  [{ TRUST_PROXY: '10.0.0.0/8, ::1,fd00::/8' }, { trustProxy: ['10.0.0.0/8', '::1', 'fd00::/8'] }],
  [
    { CORS_ORIGINS: 'https://app.example.com, http://localhost:5173,capacitor://localhost' },
    { corsOrigins: ['https://app.example.com', 'http://localhost:5173', 'capacitor://localhost'] },
  ],
  [{ CONSOLE: 'off' }, { console: null }],
  [
    { CONSOLE_CLIENT_ID: '4k2n', CONSOLE_AUTH_URL: 'https://login.example.com/' },
    { console: { clientId: '4k2n', authUrl: 'https://login.example.com', scope: 'openid' } },
  ],
  [
    { CONSOLE_SCOPE: 'openid offline_access' },
    { console: { clientId: null, authUrl: null, scope: 'openid offline_access' } },
  ],
  [{ NODE_ENV: 'development', CORS_ORIGINS: '*' }, { corsOrigins: ['*'] }],
  [{ USAGE_LIMIT_RUNS: '0' }, { usageLimitRuns: 0 }],
  [{ MAX_UNFINISHED_JOBS: '1' }, { maxUnfinishedJobs: 1 }],
  [{ MAX_PROJECTS: '1' }, { maxProjects: 1 }],
  [{ JOB_TYPES_FILE: '/etc/types.json' }, { jobTypesFile: '/etc/types.json' }],
  [{ EVENTS_RETENTION_HOURS: '1' }, { eventsRetentionHours: 1 }],
  [{ HISTORY_RETENTION_DAYS: '1' }, { historyRetentionDays: 1 }],
  [{ JOB_RETENTION_DAYS: '1' }, { jobRetentionDays: 1 }],
  [{ AUDIT_RETENTION_DAYS: '30' }, { auditRetentionDays: 30 }],
  [{ SHUTDOWN_TIMEOUT_MS: '100' }, { shutdownTimeoutMs: 100 }],
  [{ LOG_LEVEL: 'silent' }, { logLevel: 'silent' }],
  [{ OTEL_EXPORTER_OTLP_ENDPOINT: 'http://collector:4318/' }, { tracesEndpoint: 'http://collector:4318' }],
  [{ METRICS_PUBLIC: '1' }, { metricsPublic: true }],
  [{ METRICS_PUBLIC: 'false' }, { metricsPublic: false }],
  [
    { PORT: ' 3000 ', HOST: '  ', API_VARIANT: '' },
    { port: 3000, host: '127.0.0.1', variant: 'B' },
  ],
]

for (const [settings, part] of TAKEN) {
  test(`the configuration accepts ${Object.entries(settings).flat().join(' ')}`, () => {
    const config = parse({ ...SOUND, ...settings })
    assert.deepEqual({ ...config, ...part }, config)
  })
}

const REFUSED: [setting: string, values: string[]][] = [
  ['PORT', ['-1', '65536', 'http', '80.5', '1e3', '0x50', '٣']],
  ['API_VARIANT', ['C', 'b']],
  ['PUBLIC_URL', ['api.example.com', 'ftp://api.example.com']],
  ['ISSUER_URL', ['login.example.com', 'ftp://login.example.com', 'http://login.example.com', 'http://127.0.0.1']],
  ['TOKEN_USE', ['refresh']],
  ['TOKEN_ALGORITHMS', ['HS256', 'rs256', 'RS256,none', ',', 'toString']],
  ['TOKEN_AUDIENCE', [',', 'none,api', 'api, none']],
  [
    'SCOPES_MAP',
    [
      'editor',
      'editor=',
      '=admin:*',
      'editor=write:all',
      'a=admin:*,a=read:users',
      'editor=admin:* x',
      'a=constructor',
    ],
  ],
  ['CLOCK_TOLERANCE_SECONDS', ['301', '-1']],
  ['DATABASE_URL', ['mysql://db', 'db', 'sqlite:./x']],
  ['DATABASE_POOL_SIZE', ['0', '501']],
  ['DATABASE_PREPARED', ['false']],
  [
    'REDIS_URL',
    [
      'http://cache',
      'cache:6379',
      'redis+sentinel://one:26379',
      'redis+sentinel://one:x/main',
      'redis://cache/main',
      'redis://cache/?db=main',
    ],
  ],
  ['RUNTIME_URL', ['runtime']],
  ['RUNTIME_TIMEOUT_MS', ['99', '60001']],
  ['RUNTIME_IDENTITY', ['email', 'SUB']],
  ['RUNTIME_IDENTITY_SECRET', ['too-short']],
  ['WEBHOOK_SECRET', [' , ', `${SECRET},${KEY},${SECRET}`]],
  ['PUSH_API_URL', ['fcm']],
  ['PUSH_TOKEN_URL', ['token']],
  ['RATE_LIMIT_UNAUTHENTICATED', ['0', 'none']],
  ['RATE_LIMIT_AUTHENTICATED', ['0', '99999999999999999999']],
  ['RATE_LIMIT_SERVICE', ['0']],
  ['RATE_LIMIT_HEADERS', ['draft-7']],
  ['TRUST_PROXY', ['true', '10.0.0.0/33', '10.0.0.0/', '10.0.0.0/8/8', '10.0.0', 'fd00::/129', '10.0.0.0/-1', 'proxy']],
  [
    'CORS_ORIGINS',
    [
      ...[
        '*',
        'null',
        'app.example.com',
        'https://app.example.com/',
        'https://app.example.com/path',
        'https://*.example.com',
      ],
      ...[
        'HTTPS://app.example.com',
        'https://App.example.com',
        'https://app.example.com:443',
        'https://user@app.example.com',
      ],
      ...['https://app.example.com?x', 'capacitor://', 'https://bücher.example', 'https:// app.example.com'],
    ],
  ],
  ['USAGE_LIMIT_RUNS', ['-1', 'none']],
  ['MAX_UNFINISHED_JOBS', ['0', 'none']],
  ['MAX_PROJECTS', ['0', 'none']],
  ['EVENTS_RETENTION_HOURS', ['0', '8761']],
  ['HISTORY_RETENTION_DAYS', ['0', '3651', 'never']],
  ['JOB_RETENTION_DAYS', ['0', '3651', 'never']],
  ['AUDIT_RETENTION_DAYS', ['0', '3651', 'never']],
  ['SHUTDOWN_TIMEOUT_MS', ['99', '600001']],
  ['LOG_LEVEL', ['trace', 'INFO']],
  ['METRICS_PUBLIC', ['yes']],
]

for (const [setting, values] of REFUSED) {
  test(`the configuration refuses ${setting} ${values.join(', ')}, by that name and once`, () => {
    for (const value of values) {
      const faults = faultsOf({ ...SOUND, [setting]: value })
      assert.deepEqual(
        faults.map((fault) => fault.split(' ')[0]),
        [setting],
        value,
      )
    }
  })
}

test('every fault is named at once', () => {
  const broken = Object.fromEntries(REFUSED.map(([setting, [value]]) => [setting, value]))
  const named = faultsOf(broken).map((fault) => fault.split(' ')[0])
  assert.deepEqual(named.sort(), Object.keys(broken).sort())
})

describe('the issuer', () => {
  const issuerOf = (env: Env) => parse({ ...env, WEBHOOK_SECRET: SECRET }).issuerUrl
  const pool = { COGNITO_REGION: 'eu-central-1', COGNITO_USER_POOL_ID: 'eu-central-1_AbC' }

  test('the issuer is that of the pool, or the one given as a whole', () => {
    assert.equal(issuerOf(pool), 'https://cognito-idp.eu-central-1.amazonaws.com/eu-central-1_AbC')
    assert.equal(issuerOf({ ...pool, ISSUER_URL: 'https://login.example.com/' }), 'https://login.example.com/')
  })

  test('an issuer that is missing or wrong is reported by the name of its setting', () => {
    const faultOf = (env: Env) => faultsOf({ ...env, WEBHOOK_SECRET: SECRET }).map((fault) => fault.split(' ')[0])
    assert.deepEqual(faultOf({}), ['ISSUER_URL'])
    assert.deepEqual(faultOf({ COGNITO_REGION: 'eu-central-1' }), ['COGNITO_USER_POOL_ID'])
    assert.deepEqual(faultOf({ COGNITO_USER_POOL_ID: 'eu-central-1_AbC' }), ['COGNITO_REGION'])
    assert.deepEqual(faultOf({ ...pool, COGNITO_REGION: 'evil.example.com/' }), ['COGNITO_REGION'])
    assert.deepEqual(faultOf({ ...pool, COGNITO_USER_POOL_ID: '../x' }), ['COGNITO_USER_POOL_ID'])
  })

  test('the issuer may be http only on loopback, and never in production', () => {
    for (const host of ['127.0.0.1:9', 'localhost:9', '[::1]:9']) {
      const env = { ISSUER_URL: `http://${host}/pool` }
      assert.equal(parse({ ...env, NODE_ENV: 'test' }).issuerUrl, env.ISSUER_URL)
      assert.deepEqual(faultsOf({ ...SOUND, ...env, NODE_ENV: 'production' }), [
        'ISSUER_URL must be https in production',
      ])
    }
    const outside = { ISSUER_URL: 'http://127.0.0.1.example.com', NODE_ENV: 'development' }
    assert.deepEqual(faultsOf(outside), ['ISSUER_URL may be http only for a loopback address'])
  })
})

describe('the audience of tokens', () => {
  const serve = (env: Env) => () => parseConfig({ ...SOUND, ...env }, () => '', { toServe: true })
  const POOLS = [
    'https://cognito-idp.eu-central-1.amazonaws.com/eu-central-1_AbC',
    'https://issuer-cognito-idp.eu-central-1.amazonaws.com/eu-central-1_AbC',
    'https://cognito-idp.cn-north-1.amazonaws.com.cn/cn-north-1_AbC',
  ]
  const OTHERS = [
    'https://login.example.com/pool',
    'https://cognito-idp.eu-central-1.amazonaws.com.example.com/pool',
    'https://example.com/cognito-idp.eu-central-1.amazonaws.com/pool',
    'https://x.cognito-idp.eu-central-1.amazonaws.com/pool',
    'https://cognito-idp.amazonaws.com/pool',
  ]

  test('a service in production must be given an audience, unless the issuer is a Cognito pool', () => {
    for (const ISSUER_URL of OTHERS) {
      assert.throws(serve({ ISSUER_URL }), /^ConfigError: Bad configuration:\n {2}TOKEN_AUDIENCE is missing: [^\n]+$/)
      for (const TOKEN_AUDIENCE of ['none', 'api']) serve({ ISSUER_URL, TOKEN_AUDIENCE })()
      serve({ ISSUER_URL, NODE_ENV: 'test' })()
    }
    for (const ISSUER_URL of POOLS) assert.equal(serve({ ISSUER_URL })().tokenAudience, null)
  })

  test('a pool is known by its https address alone', () => {
    for (const issuer of POOLS) {
      assert.equal(isCognitoIssuer(issuer), true)
      assert.equal(isCognitoIssuer(issuer.replace('https:', 'http:')), false)
    }
    assert.equal(isCognitoIssuer('no address'), false)
  })

  test('a command that serves no requests needs no audience', () => {
    assert.equal(parse(SOUND).tokenAudience, null)
  })

  test('no audience is required where the setting says none', () => {
    assert.equal(requiredAudiences(parse({ ...SOUND, TOKEN_AUDIENCE: 'none' })), null)
    assert.equal(requiredAudiences(parse(SOUND)), null)
    assert.deepEqual(requiredAudiences(parse({ ...SOUND, TOKEN_AUDIENCE: 'api' })), ['api'])
  })
})

test('every check is strict unless NODE_ENV says development or test', () => {
  const { ISSUER_URL } = SOUND
  for (const mode of ['development', 'test']) {
    const config = parse({ ISSUER_URL, NODE_ENV: mode })
    assert.equal(config.production, false)
    assert.deepEqual(config.webhookSecrets, [])
  }
  for (const mode of [undefined, '', 'production', 'staging', 'Test']) {
    assert.deepEqual(faultsOf({ ISSUER_URL, NODE_ENV: mode }), ['WEBHOOK_SECRET is missing: callbacks could be forged'])
    assert.equal(parse({ ...SOUND, NODE_ENV: mode }).production, true)
  }
})

test('pseudonyms need a secret, which no rotation of another secret changes', () => {
  const fault = 'RUNTIME_IDENTITY_SECRET is missing: RUNTIME_IDENTITY=pseudonym needs it'
  assert.deepEqual(faultsOf({ ...SOUND, RUNTIME_IDENTITY: 'pseudonym' }), [fault])
})

describe('a secret', () => {
  const SECRETS: [name: string, value: string][] = [
    ['DATABASE_URL', 'postgres://a:hunter2@db/x'],
    ['REDIS_URL', 'redis://:hunter2@cache'],
    ['RUNTIME_API_KEY', 'hunter2'],
    ['RUNTIME_IDENTITY_SECRET', 'hunter2 hunter2 hunter2 hunter2'],
    ['WEBHOOK_SECRET', 'hunter2 hunter2 hunter2 hunter2'],
    ['PUSH_PROJECT_ID', 'hunter2'],
    ['PUSH_CLIENT_EMAIL', 'hunter2'],
    ['PUSH_PRIVATE_KEY', PEM],
  ]
  const rest = { RUNTIME_URL: 'http://runtime', PUSH_PROJECT_ID: 'p', PUSH_CLIENT_EMAIL: 'e', PUSH_PRIVATE_KEY: PEM }

  for (const [name, value] of SECRETS) {
    const given = { ...SOUND, ...rest, [name]: undefined, [`${name}_FILE`]: '/run/secret' }

    test(`${name} may come from a file, and is the same`, () => {
      assert.deepEqual(parse(given, { '/run/secret': `${value}\n` }), parse({ ...SOUND, ...rest, [name]: value }))
    })

    test(`${name} from a file that is missing or empty, or given twice, is a fault that shows nothing of it`, () => {
      const [missing = ''] = faultsOf(given)
      assert.equal(missing, `${name}_FILE cannot be read (ENOENT): /run/secret`)
      const [empty = ''] = faultsOf(given, { '/run/secret': ' \n' })
      assert.equal(empty, `${name}_FILE points to an empty file: /run/secret`)
      const [twice = ''] = faultsOf({ ...given, [name]: value }, { '/run/secret': value })
      assert.equal(twice, `${name} and ${name}_FILE are both set: set only one`)
    })
  }

  test('a secret is never part of a fault', () => {
    const env = {
      DATABASE_URL: 'mysql://a:hunter2@db/x',
      REDIS_URL: 'http://:hunter2@cache',
      WEBHOOK_SECRET: 'hunter2,hunter2',
      PUSH_PRIVATE_KEY: 'hunter2',
    }
    const faults = faultsOf({ ...SOUND, ...env })
    assert.equal(faults.length, 6)
    assert.ok(!faults.join().includes('hunter2'))
  })
})

describe('a setting that would leak or break requests', () => {
  test('a URL with a user name or a password is refused by its name, and not shown', () => {
    for (const name of ['RUNTIME_URL', 'PUBLIC_URL', 'ISSUER_URL', 'PUSH_API_URL', 'PUSH_TOKEN_URL']) {
      for (const user of ['admin:hunter2', 'hunter2', ':hunter2']) {
        const faults = faultsOf({ ...SOUND, [name]: `https://${user}@host.example.com/x` })
        assert.deepEqual(faults, [`${name} must not contain a user name or a password`])
      }
      for (const url of ['https:/\\host', 'https:host', 'https:\\\\host', 'https://']) {
        assert.deepEqual(faultsOf({ ...SOUND, [name]: url }), [
          `${name} must be a URL that starts with http:// or https://`,
        ])
      }
      for (const url of ['https://ho\nst', 'https://host/a b', 'https://host/\u0001', 'https://host/\u2028x']) {
        const fault = `${name} must not contain blanks, line breaks or control characters`
        assert.deepEqual(faultsOf({ ...SOUND, [name]: url }), [fault])
      }
    }
  })

  test('a URL to which paths are appended has no query and no fragment', () => {
    for (const name of ['RUNTIME_URL', 'PUBLIC_URL', 'ISSUER_URL', 'PUSH_API_URL']) {
      for (const end of ['?token=hunter2', '#hunter2', '?']) {
        const faults = faultsOf({ ...SOUND, [name]: `https://host/x${end}` })
        assert.deepEqual(faults, [`${name} must not contain a query or a fragment, because paths are appended to it`])
      }
    }
    const PUSH_TOKEN_URL = 'https://host/token?tenant=1'
    assert.equal(parse({ ...SOUND, PUSH_TOKEN_URL }).pushTokenUrl, PUSH_TOKEN_URL)
  })

  const LINES = [
    'DATABASE_URL',
    'REDIS_URL',
    'WEBHOOK_SECRET',
    'PUSH_PROJECT_ID',
    'PUSH_CLIENT_EMAIL',
    'RUNTIME_API_KEY',
    'RUNTIME_IDENTITY_SECRET',
  ] as const
  const good: Record<string, string> = {
    ...SOUND,
    DATABASE_URL: 'postgres://a:b@db/x',
    REDIS_URL: 'redis://cache',
    RUNTIME_URL: 'http://runtime',
    RUNTIME_API_KEY: 'a key',
    RUNTIME_IDENTITY_SECRET: SECRET,
    PUSH_PROJECT_ID: 'p',
    PUSH_CLIENT_EMAIL: 'e',
    PUSH_PRIVATE_KEY: PEM,
  }

  test('a secret of two lines, or with a control character, is refused by its name, and not shown', () => {
    assert.deepEqual(faultsOf(good), [])
    for (const name of LINES) {
      for (const odd of [
        '\nhunter2',
        '\r\nX-Evil: hunter2',
        '\u0000hunter2',
        '\thunter2',
        '\u007fhunter2',
        '\u0085hunter2',
      ]) {
        const value = `${good[name]}${odd}`
        const given = faultsOf({ ...good, [name]: value })
        assert.match(given.join(), new RegExp(`^${name} must [^"]*$`), JSON.stringify(odd))
        assert.ok(!given.join().includes('hunter2'))
        const env = { ...good, [name]: undefined, [`${name}_FILE`]: '/run/secret' }
        assert.deepEqual(faultsOf(env, { '/run/secret': `${value}\n` }), given)
      }
    }
  })

  test('a key for a header that no header can carry is refused', () => {
    const fault = 'RUNTIME_API_KEY must be one line of ASCII characters, because a header carries it'
    for (const key of ['schlüssel', '鍵', 'a\nb', '\ud800']) {
      assert.deepEqual(faultsOf({ ...good, RUNTIME_API_KEY: key }), [fault])
    }
  })
})

describe('the secret of callbacks', () => {
  const faultsFor = (secret: string, mode?: string) => faultsOf({ ...SOUND, WEBHOOK_SECRET: secret, NODE_ENV: mode })
  const SHORT = 'WEBHOOK_SECRET must have at least 24 bytes in production, as from: openssl rand -hex 32'
  const BROKEN = 'WEBHOOK_SECRET must have a key in base64 after whsec_'
  const encoded = (bytes: number) => `whsec_${Buffer.alloc(bytes, 0xfb).toString('base64')}`

  test('the secret of callbacks has at least 24 bytes in production, counted as they are used', () => {
    for (const secret of ['x', 'x'.repeat(23), encoded(1), encoded(23)]) {
      assert.deepEqual(faultsFor(secret), [SHORT])
      assert.deepEqual(faultsFor(`${SECRET},${secret}`), [SHORT], 'also as the second')
      assert.deepEqual(faultsFor(`${secret},${secret}`), [SHORT], 'once')
      for (const mode of ['development', 'test']) assert.deepEqual(faultsFor(secret, mode), [])
    }
    for (const secret of ['x'.repeat(24), 'ü'.repeat(12), encoded(24), encoded(25), encoded(26), encoded(64)]) {
      assert.deepEqual(faultsFor(secret), [])
    }
  })

  test('a secret of callbacks that should be base64 and is not would be the empty key, and is refused everywhere', () => {
    const base64 = Buffer.alloc(25, 0xfb).toString('base64')
    const broken = [
      'whsec_',
      'whsec_!!!!',
      'whsec_=',
      `whsec_${base64.replaceAll('=', '')}`,
      `whsec_${base64}=`,
      `whsec_${base64.replaceAll('+', '-')}`,
      `whsec_${base64.slice(0, 8)} ${base64.slice(8)}`,
      `whsec_${base64.replace(/.==$/, 'x==')}`,
      `whsec_${SECRET}`,
    ]
    for (const secret of broken) {
      for (const mode of ['production', 'development', 'test'])
        assert.deepEqual(faultsFor(secret, mode), [BROKEN], secret)
    }
  })
})

describe('push credentials', () => {
  const given = { PUSH_PROJECT_ID: 'p', PUSH_CLIENT_EMAIL: 'e@example.com', PUSH_PRIVATE_KEY: PEM }

  test('push credentials may have their line ends written as \\n', () => {
    const config = parse({ ...SOUND, ...given, PUSH_PRIVATE_KEY: PEM.replaceAll('\n', '\\n') })
    assert.deepEqual(config.push, { projectId: 'p', clientEmail: 'e@example.com', privateKey: PEM })
  })

  test('push credentials go together: each that is missing is named', () => {
    for (const name of Object.keys(given)) {
      const others = Object.keys(given).filter((other) => other !== name)
      const faults = faultsOf({ ...SOUND, [name]: given[name as keyof typeof given] })
      assert.deepEqual(
        faults,
        others.map((other) => `${other} is missing: set all three push credentials or none`),
      )
    }
  })

  test('push credentials need a valid RSA private key', () => {
    const fault = 'PUSH_PRIVATE_KEY must be a PEM block of an RSA private key'
    const elliptic = generateKeyPairSync('ec', { namedCurve: 'P-256' }).privateKey
    const garbage = '-----BEGIN PRIVATE KEY-----\nMIIE\n-----END PRIVATE KEY-----'
    const others = [
      PEM.replaceAll('PRIVATE', 'PUBLIC'),
      garbage,
      elliptic.export({ type: 'pkcs8', format: 'pem' }).toString(),
    ]
    for (const PUSH_PRIVATE_KEY of others) {
      assert.deepEqual(faultsOf({ ...SOUND, ...given, PUSH_PRIVATE_KEY }), [fault])
    }
  })
})
