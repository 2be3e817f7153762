import { startPushProvider } from '../../../src/sandbox/push-provider/push-provider.ts'
import type { ProviderAddress } from './push-task.ts'

/** The sandbox push provider in its own process, not on the senders' event loop. */
const provider = await startPushProvider()
provider.setFaults({ latency_ms: Number(process.env.LATENCY_MS) })
const { url, tokenUrl, plainUrl, ca, credentials } = provider
process.send?.({ url, tokenUrl, plainUrl, ca, credentials } satisfies ProviderAddress)
