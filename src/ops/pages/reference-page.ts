import { promisify } from 'node:util'
import { gzip } from 'node:zlib'
import fastify from 'fastify'
import type { App } from '../../http/app-instance.ts'
import { publicAccess } from '../../http/gate/access.ts'
import { ICON } from './icon.ts'

const CONTENT_SECURITY_POLICY = [
  "default-src 'none'",
  "script-src 'self'",
  "style-src 'self' 'unsafe-inline'",
  "img-src 'self' data:",
  "font-src 'self' data:",
  "connect-src 'self'",
  "base-uri 'none'",
  "frame-ancestors 'none'",
].join('; ')

/** Serves the API reference at `/docs`. Page and scripts come from this service, so it works without internet access. */
export function referencePageRoutes(app: App): void {
  const page = { config: { access: publicAccess('the API reference') }, schema: { hide: true } }
  const asset = {
    config: { access: publicAccess('a static asset of the reference', { charged: false }) },
    schema: { hide: true },
  }

  app.get('/docs', page, (_request, reply) =>
    reply.type('text/html; charset=utf-8').header('content-security-policy', CONTENT_SECURITY_POLICY).send(PAGE),
  )
  app.get('/docs/start.js', asset, (_request, reply) => reply.type('text/javascript; charset=utf-8').send(START))
  app.get('/docs/reference.js', asset, async (_request, reply) =>
    reply
      .type('text/javascript; charset=utf-8')
      .header('content-encoding', 'gzip')
      .header('cache-control', 'public, max-age=86400')
      .send(await referenceScript()),
  )
}

let compressed: Promise<Buffer> | undefined

/** Loaded on the first visit: the package is several megabytes, which should not be in memory if the page is not used. */
function referenceScript(): Promise<Buffer> {
  compressed ??= loadReferenceScript()
  return compressed
}

/** The package offers its script only through a Fastify plugin, so a temporary application loads the plugin and asks for it. */
async function loadReferenceScript(): Promise<Buffer> {
  const { default: plugin } = await import('@scalar/fastify-api-reference')
  const temporary = fastify()
  await temporary.register(plugin, { routePrefix: '/', configuration: { content: '{}' } })
  const script = await temporary.inject('/js/scalar.js')
  await temporary.close()
  if (script.statusCode !== 200) throw new Error('The reference package does not serve its script')
  return promisify(gzip)(Buffer.concat([Buffer.from(WITHOUT_EVAL), script.rawPayload]))
}

/** Without this, the script's validator tries to compile code. The policy forbids that, and the browser reports an error. */
const WITHOUT_EVAL = 'globalThis.__zod_globalConfig = { jitless: true };\n'

const PAGE = `<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Project API reference</title>
<link rel="icon" href="${ICON}">
</head>
<body>
<noscript>The reference needs JavaScript. The same in JSON: <a href="/openapi.json">/openapi.json</a></noscript>
<div id="reference"></div>
<script src="/docs/reference.js"></script>
<script src="/docs/start.js"></script>
</body>
</html>
`

/** On this machine only, `#token=` fills in a token: the start page of `dev` links here with one. */
const START = `const given = /^#token=([\\w.-]+)$/.exec(location.hash)?.[1]
const isLocal = ['127.0.0.1', 'localhost', '[::1]'].includes(location.hostname)
if (given) history.replaceState(null, '', location.pathname)
const bearer = given && isLocal ? { securitySchemes: { bearer: { token: given } } } : {}
Scalar.createApiReference('#reference', {
  url: '/openapi.json',
  theme: 'default',
  withDefaultFonts: false,
  telemetry: false,
  hideClientButton: true,
  showDeveloperTools: 'never',
  agent: { disabled: true },
  mcp: { disabled: true },
  authentication: { preferredSecurityScheme: 'bearer', ...bearer },
  defaultHttpClient: { targetKey: 'shell', clientKey: 'curl' },
})
`
