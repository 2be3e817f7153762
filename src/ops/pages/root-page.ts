import { createHash } from 'node:crypto'
import type { FastifyReply, FastifyRequest } from 'fastify'
import type { App } from '../../http/app-instance.ts'
import { publicAccess } from '../../http/gate/access.ts'
import { ICON } from './icon.ts'

const STYLE = 'body { max-width: 40rem; margin: 3rem auto; padding: 0 1rem; font: 1rem/1.6 system-ui, sans-serif }'

const CONTENT_SECURITY_POLICY = [
  "default-src 'none'",
  `style-src 'sha256-${createHash('sha256').update(STYLE).digest('base64')}'`,
  'img-src data:',
  "base-uri 'none'",
  "form-action 'none'",
  "frame-ancestors 'none'",
].join('; ')

/** Shows a browser at `/` where things are. For API clients, which do not accept HTML, `/` stays an unknown path. */
export function rootPage(app: App, { hasConsole }: { hasConsole: boolean }): void {
  const page = { config: { access: publicAccess('the page at the root') }, schema: { hide: true } }
  const html = pageWith(hasConsole ? [...LINKS, CONSOLE] : LINKS)
  app.get('/', page, (request: FastifyRequest, reply: FastifyReply) => {
    if (!request.headers.accept?.includes('text/html')) return reply.callNotFound()
    return reply
      .type('text/html; charset=utf-8')
      .header('content-security-policy', CONTENT_SECURITY_POLICY)
      .header('referrer-policy', 'no-referrer')
      .header('cache-control', 'no-store')
      .send(html)
  })
}

interface Link {
  path: string
  name: string
}

const LINKS: readonly Link[] = [
  { path: '/docs', name: 'API reference' },
  { path: '/openapi.json', name: 'OpenAPI document' },
  { path: '/healthz', name: 'Health: is the process alive?' },
  { path: '/readyz', name: 'Readiness: does the service accept traffic?' },
]
const CONSOLE: Link = { path: '/console', name: 'Console for operators' }

function pageWith(links: readonly Link[]): string {
  const items = links.map(({ path, name }) => `<li><a href="${path}">${name}</a> <code>${path}</code></li>`)
  return `<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>Project API</title>
<link rel="icon" href="${ICON}">
<style>${STYLE}</style>
</head>
<body>
<main>
<h1>Project API</h1>
<p>This is the address of an API. Programs use its paths; people find these pages:</p>
<ul>
${items.join('\n')}
</ul>
<p>The guides are in the folder <code>docs</code> of the service.</p>
</main>
</body>
</html>
`
}
