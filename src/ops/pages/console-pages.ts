import { readdirSync, readFileSync } from 'node:fs'
import { extname, join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { gzipSync } from 'node:zlib'
import type { FastifyReply, FastifyRequest } from 'fastify'
import { ApiError } from '../../core/errors.ts'
import type { App } from '../../http/app-instance.ts'
import { publicAccess } from '../../http/gate/access.ts'
import { shippedFile } from '../../shipped-files.ts'
import type { ConsoleSignIn } from './console-sign-in.ts'

/** Settings that the console needs before the operator has signed in. They contain no secrets. */
export interface ConsoleSettings {
  issuerUrl: string
  /** Null: no client is registered for the console, so operators paste a token or a key. */
  clientId: string | null
  /** The scopes that the sign-in asks for. */
  scope: string
  /** The API for which the sign-in asks for a token. Null: the provider knows it. */
  audience: string | null
  /** In `dev` only: the sandbox's user that one click signs in, and the sandbox's pages. */
  dev: { user: string; links: Record<string, string> } | null
}

interface ConsoleOptions {
  /** Default: the folder into which `npm run build` writes the console. */
  folder?: string
  settings: ConsoleSettings
  /** Where operators sign in. Rejects while the identity provider cannot be reached. */
  findAddresses: () => Promise<ConsoleSignIn>
}

const BUILT = fileURLToPath(shippedFile('console/dist'))

const TYPES: Readonly<Record<string, string>> = {
  '.js': 'text/javascript; charset=utf-8',
  '.css': 'text/css; charset=utf-8',
  '.svg': 'image/svg+xml',
  '.woff2': 'font/woff2',
}

/** Serves the operator's console at `/console`. All of it comes from this service, so it works without internet access. */
export function consolePages(app: App, { folder = BUILT, settings, findAddresses }: ConsoleOptions): void {
  const page = { config: { access: publicAccess('the console', { charged: false }) }, schema: { hide: true } }
  // Without a client, the console signs in without the provider.
  const findSignIn = async () => (settings.clientId === null ? null : await findAddresses())
  // Read on the first visit: a service without visitors should not hold it in memory.
  let build: Build | undefined
  const files = () => (build ??= readBuild(folder))
  const answerPage = async (_request: FastifyRequest, reply: FastifyReply) => {
    // If the provider cannot be reached, the page is shown, and says so.
    const policy = contentSecurityPolicy(settings, await findSignIn().catch(() => null))
    reply.header('content-security-policy', policy).header('referrer-policy', 'no-referrer')
    reply.type('text/html; charset=utf-8').header('cache-control', 'no-cache')
    const { page } = files()
    return page === null ? reply.send(NOT_BUILT) : reply.header('content-encoding', 'gzip').send(page)
  }

  app.get('/console', page, answerPage)
  // All paths get the same page; its script reads the rest of the path.
  app.get('/console/*', page, answerPage)
  app.get('/console/settings.json', page, async (_request, reply) =>
    reply.header('cache-control', 'no-cache').send({ ...settings, signIn: await findSignIn() }),
  )
  app.get<{ Params: { name: string } }>('/console/assets/:name', page, (request, reply) => {
    // Only file names of the build are served: no path of a request reaches the file system.
    const asset = files().assets.get(request.params.name)
    if (!asset) throw new ApiError('not_found', 'No such file')
    return (
      reply
        .type(asset.type)
        .header('content-encoding', 'gzip')
        // The name contains a hash of the content.
        .header('cache-control', 'public, max-age=31536000, immutable')
        .send(asset.body)
    )
  })
}

interface Build {
  page: Buffer | null
  assets: Map<string, { type: string; body: Buffer }>
}

function readBuild(folder: string): Build {
  const assets: Build['assets'] = new Map()
  try {
    const page = gzipSync(readFileSync(join(folder, 'index.html')))
    for (const name of readdirSync(join(folder, 'assets'))) {
      const type = TYPES[extname(name)]
      if (type) assets.set(name, { type, body: gzipSync(readFileSync(join(folder, 'assets', name))) })
    }
    return { page, assets }
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== 'ENOENT') throw error
    return { page: null, assets }
  }
}

/** The sign-in calls the token endpoint, which may be on another origin. */
function contentSecurityPolicy({ issuerUrl }: ConsoleSettings, signIn: ConsoleSignIn | null): string {
  const origins = new Set([issuerUrl, signIn?.server.token_endpoint ?? issuerUrl].map((url) => new URL(url).origin))
  return [
    "default-src 'none'",
    "script-src 'self'",
    "style-src 'self'",
    "img-src 'self' data:",
    "font-src 'self'",
    `connect-src 'self' ${[...origins].join(' ')}`,
    "base-uri 'none'",
    "form-action 'none'",
    "frame-ancestors 'none'",
  ].join('; ')
}

const NOT_BUILT = `<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>The console is not built</title>
<h1>The console is not built</h1>
<p>Run <code>npm run build</code> in the folder of the service, then restart it.</p>
</html>
`
