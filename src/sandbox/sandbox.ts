import { type AgentRuntime, startAgentRuntime } from './agent-runtime/agent-runtime.ts'
import { type IdentityProvider, startIdentityProvider } from './identity-provider/identity-provider.ts'
import type { SigningKey } from './identity-provider/token-mint.ts'
import { type SandboxPushProvider, startPushProvider } from './push-provider/push-provider.ts'
import { type StartPage, startStartPage } from './start-page/start-page.ts'
import { startWebhookReceiver, type WebhookReceiver } from './webhook-receiver/webhook-receiver.ts'

export interface Sandbox {
  start: StartPage
  identity: IdentityProvider
  runtime: AgentRuntime
  push: SandboxPushProvider
  receiver: WebhookReceiver
  close(): Promise<void>
}

/** 0: any free port. A port that another program uses is replaced by a free one. */
export interface SandboxPorts {
  start: number
  identity: number
  runtime: number
  push: number
  pushTls: number
  receiver: number
}

interface SandboxOptions {
  apiUrl: string
  ports: SandboxPorts
  /** The first key of the identity provider. Default: a new one. */
  signingKey?: SigningKey
}

/** All dependencies of the service on loopback, with the real protocols, and a start page. */
export async function startSandbox({ apiUrl, ports, signingKey }: SandboxOptions): Promise<Sandbox> {
  const consoleUrl = `${apiUrl}/console`
  const [identity, runtime, push, receiver] = await Promise.all([
    startIdentityProvider({
      apiUrl,
      consoleUrl,
      port: ports.identity,
      anyIfTaken: true,
      ...(signingKey && { signingKey }),
    }),
    startAgentRuntime({ consoleUrl, port: ports.runtime, anyIfTaken: true }),
    startPushProvider({ consoleUrl, port: ports.pushTls, plainPort: ports.push, anyIfTaken: true }),
    startWebhookReceiver({ consoleUrl, port: ports.receiver, anyIfTaken: true }),
  ])
  const start = await startStartPage({ apiUrl, consoleUrl, port: ports.start, identity, runtime, push, receiver })
  return {
    start,
    identity,
    runtime,
    push,
    receiver,
    close: async () => {
      await Promise.all([start.close(), identity.close(), runtime.close(), push.close(), receiver.close()])
    },
  }
}
