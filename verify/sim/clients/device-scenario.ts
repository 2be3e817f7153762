import type { PushProvider } from '../outside/push-provider.ts'
import type { Prng } from '../time/prng.ts'
import type { VirtualTime } from '../time/virtual-time.ts'
import type { Client } from './client.ts'

export interface DeviceStoryOptions {
  client: Client
  time: VirtualTime
  prng: Prng
  provider: PushProvider
  goesOn: () => boolean
}

/** A user's devices: registered, dead, registered again, removed; and a user who wants no push, for a while. */
export async function liveWithDevices({ client, time, prng, provider, goesOn }: DeviceStoryOptions): Promise<void> {
  const tokens = Array.from({ length: prng.int(0, 2) }, (_, index) => `${client.name}-device-${index + 1}`)
  const register = (token: string) =>
    client.insist({ method: 'POST', path: '/v1/devices', body: { token, platform: 'android' } })
  const changePush = (push_enabled: boolean) =>
    client.insist({ method: 'PATCH', path: '/v1/users/me', body: { push_enabled } })
  for (const token of tokens) await register(token)
  if (prng.chance(0.15)) await changePush(false)
  while (goesOn() && tokens.length > 0) {
    await time.sleep(prng.int(5_000, 40_000))
    if (!goesOn()) return
    const token = prng.pick(tokens)
    const what = prng.weighted({ nothing: 5, dies: 2, returns: 2, removed: 1, push: 1 })
    if (what === 'dies') provider.deadTokens.add(token)
    if (what === 'returns') {
      provider.deadTokens.delete(token)
      await register(token)
    }
    if (what === 'removed') await removeAny(client)
    if (what === 'push') await changePush(prng.chance(0.5))
  }
}

async function removeAny(client: Client): Promise<void> {
  const listed = await client.ask({ method: 'GET', path: '/v1/devices' })
  if (listed?.status !== 200) return
  const [first] = (JSON.parse(listed.body) as { data: { id: string }[] }).data
  if (first) await client.ask({ method: 'DELETE', path: `/v1/devices/${first.id}` })
}
