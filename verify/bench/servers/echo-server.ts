import fastify from 'fastify'

/** Parses callbacks and answers, and does nothing else: the upper bound of HTTP on this machine. */
const app = fastify()

app.get('/healthz', () => ({ status: 'ok' }))
app.post<{ Body: { metadata: { job_id: string } } }>('/webhooks/jobs/:type', async ({ body }) => {
  return { received: true, outcome: 'applied', job_id: body.metadata.job_id }
})

await app.listen({ host: '127.0.0.1', port: Number(process.env.PORT) })
