import { type AgentRuntime, startAgentRuntime } from './agent-runtime/agent-runtime.ts'
import { type IdentityProvider, startIdentityProvider } from './identity-provider/identity-provider.ts'
import { type SandboxPushProvider, startPushProvider } from './push-provider/push-provider.ts'

export interface Sandbox {
  identity: IdentityProvider
  runtime: AgentRuntime
  push: SandboxPushProvider
  close(): Promise<void>
}

/** The outside world on loopback: everything the service talks to, speaking the real protocols. */
export async function startSandbox({ apiUrl }: { apiUrl: string }): Promise<Sandbox> {
  const [identity, runtime, push] = await Promise.all([
    startIdentityProvider({ apiUrl }),
    startAgentRuntime(),
    startPushProvider(),
  ])
  return {
    identity,
    runtime,
    push,
    close: async () => {
      await Promise.all([identity.close(), runtime.close(), push.close()])
    },
  }
}
