import { type IdentityProvider, startIdentityProvider } from '../../src/sandbox/identity-provider/identity-provider.ts'
import { atEnd } from './at-end.ts'
import { HttpClient, type TestResponse } from './http-client.ts'
import { Program, type ProgramOptions, type Settings } from './program.ts'

/** One issuer for all programs of a test file: making its key takes longer than most tests. */
export function sharedIssuer(): Promise<IdentityProvider> {
  issuer ??= startIdentityProvider()
  return issuer
}

/** The minimal settings of the program, on a free port, plus the given ones. */
export async function settingsWith(more: Settings = {}): Promise<Settings> {
  const { issuer } = await sharedIssuer()
  return { NODE_ENV: 'test', ISSUER_URL: issuer, PORT: '0', ...more }
}

/** `serve` in a process of its own, listening. */
export async function startServe(options: ProgramOptions = {}): Promise<Served> {
  const program = new Program(['serve'], { ...options, settings: await settingsWith(options.settings) })
  const [, url = ''] = await program.untilSaid(/"url":"(http:[^"]+)".*"service\.started"/)
  const served = new Served(url, program)
  clients.push(served)
  return served
}

/** Sends a request again while the service is too busy for it, as it may be on a busy machine. */
export async function untilAdmitted<Body>(send: () => Promise<TestResponse<Body>>): Promise<TestResponse<Body>> {
  for (;;) {
    const answer = await send()
    if (answer.status !== 503) return answer
  }
}

export class Served extends HttpClient {
  readonly program: Program

  constructor(url: string, program: Program) {
    super(url)
    this.program = program
  }
}

let issuer: Promise<IdentityProvider> | undefined
const clients: HttpClient[] = []

atEnd(async () => {
  for (const client of clients) client.close()
  await (await issuer)?.close()
})
