import { startAgentRuntime } from '../../src/sandbox/agent-runtime/agent-runtime.ts'

/** The sandbox's agent runtime in its own process, so that its work does not count as the service's. */
const runtime = await startAgentRuntime()
process.send?.({ runtimeUrl: runtime.url })
process.on('disconnect', () => process.exit())
