import { request } from 'node:https'
import { systemClock } from '../../src/core/clock.ts'
import { EgressClient } from '../../src/egress/egress-client.ts'
import { EgressGuard } from '../../src/egress/egress-guard.ts'

/** A program that posts to a URL twice: through the guard, and with the global agent of Node. It prints both outcomes. */
const { url, ca } = JSON.parse(process.argv[2] ?? '') as { url: string; ca: string }
const guard = new EgressGuard({ allow: ['127.0.0.1'], allowHttp: false })
const client = new EgressClient({ guard, clock: systemClock, ca })
const { status: guarded } = await client.post({ url, headers: {}, body: '{}' })
client.close()
const unguarded = await new Promise((resolve) => {
  request(url, { method: 'POST', ca }, (response) => resolve(response.statusCode))
    .on('error', ({ code }: NodeJS.ErrnoException) => resolve(code))
    .end('{}')
})
process.stdout.write(JSON.stringify({ guarded, unguarded }))
