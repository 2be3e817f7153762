import { createRequire } from 'node:module'
import { join } from 'node:path'
import { fileURLToPath, pathToFileURL } from 'node:url'
import { installPackages } from './install-packages.ts'
import { ServerProcess, startOnFreePort } from './server-process.ts'

const HOME = fileURLToPath(new URL('../identity/packages/', import.meta.url))

export const API = 'https://api.example.com/'

/** A package of test/identity/packages. */
export async function importPackage<Module>(name: string): Promise<Module> {
  await installPackages(HOME)
  const file = createRequire(join(HOME, 'package.json')).resolve(name)
  return (await import(pathToFileURL(file).href)) as Module
}

/** A certified OpenID provider that others wrote, in a process of its own: see test/identity/packages/provider.mjs. */
export async function startOidcProvider({ serviceUrl }: { serviceUrl: string }): Promise<OidcProvider> {
  await installPackages(HOME)
  const server = new ServerProcess('oidc-provider')
  const port = await startOnFreePort((port) =>
    server.start({
      command: process.execPath,
      args: [join(HOME, 'provider.mjs'), String(port), serviceUrl, API],
      ready: /listening/,
      stopSignal: 'SIGTERM',
    }),
  )
  return new OidcProvider(server, `http://127.0.0.1:${port}`)
}

export class OidcProvider {
  readonly issuer: string
  readonly #server: ServerProcess

  constructor(server: ServerProcess, issuer: string) {
    this.#server = server
    this.issuer = issuer
  }

  /** An access token of the backend `machine`, for an API and signed as the last part of the API's address says. */
  async machineToken({ resource, scope = '' }: { resource: string; scope?: string }): Promise<string> {
    const response = await fetch(`${this.issuer}/token`, {
      method: 'POST',
      headers: { authorization: `Basic ${btoa('machine:machine-secret')}` },
      body: new URLSearchParams({ grant_type: 'client_credentials', resource, scope }),
    })
    const answer = (await response.json()) as { access_token?: string }
    if (answer.access_token === undefined) throw new Error(`No token: ${JSON.stringify(answer)}`)
    return answer.access_token
  }

  stop(): Promise<void> {
    return this.#server.stop()
  }
}
