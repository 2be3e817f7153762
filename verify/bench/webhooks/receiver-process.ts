import { createServer } from 'node:https'
import type { AddressInfo } from 'node:net'
import { selfSignedCertificate } from '../../../src/sandbox/certificate.ts'
import { ENDPOINTS, type ReceiverAddresses } from './webhook-task.ts'

/** Receivers in their own process, not on the senders' event loop. Any message to the process asks for the arrivals. */
const latencyMs = Number(process.env.LATENCY_MS)
/** One host for each receiver, because the requests to a host are bounded. Linux has all of these addresses. */
const hosts = Array.from({ length: ENDPOINTS }, (_, n) => `127.0.0.${n + 1}`)
const { cert, key } = await selfSignedCertificate(hosts, Date.now())
/** How often each event has arrived at each receiver since the last question. */
let arrivals = new Map<string, number>()

const urls = await Promise.all(hosts.map(listen))
process.send?.({ urls, ca: cert } satisfies ReceiverAddresses)
process.on('message', () => {
  const repeated = [...arrivals.values()].filter((times) => times > 1).length
  process.send?.({ arrived: arrivals.size, repeated })
  arrivals = new Map()
})

function listen(host: string): Promise<string> {
  const server = createServer({ cert, key }, (request, response) => {
    const event = `${host} ${request.headers['webhook-id']}`
    request.resume().once('end', () => {
      arrivals.set(event, (arrivals.get(event) ?? 0) + 1)
      setTimeout(() => response.writeHead(204).end(), latencyMs)
    })
  })
  return new Promise((resolve) => {
    server.listen(0, host, () => {
      const { port } = server.address() as AddressInfo
      resolve(`https://${host}:${port}/events`)
    })
  })
}
