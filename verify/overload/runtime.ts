import { startAgentRuntime } from '../../src/sandbox/agent-runtime/agent-runtime.ts'

/** The sandbox's agent runtime in a process of its own, so that its work is not the service's. */
const runtime = await startAgentRuntime()
process.send?.({ runtimeUrl: runtime.url })
process.on('disconnect', () => process.exit())
