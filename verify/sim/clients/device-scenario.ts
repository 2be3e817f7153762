import type { SimPushProvider } from '../outside/push-provider.ts'
import type { Prng } from '../time/prng.ts'
import type { VirtualTime } from '../time/virtual-time.ts'
import type { Client } from './client.ts'

export interface DeviceScenarioOptions {
  client: Client
  time: VirtualTime
  prng: Prng
  provider: SimPushProvider
  isActive: () => boolean
}

/** A user's devices are registered, die, are registered again and are removed. The user turns push off and on. */
export async function runDeviceScenario({
  client,
  time,
  prng,
  provider,
  isActive,
}: DeviceScenarioOptions): Promise<void> {
  const tokens = Array.from({ length: prng.int(0, 2) }, (_, index) => `${client.name}-device-${index + 1}`)
  const register = (token: string) =>
    client.requestUntilAnswered({ method: 'POST', path: '/v1/devices', body: { token, platform: 'android' } })
  const changePush = (push_enabled: boolean) =>
    client.requestUntilAnswered({ method: 'PATCH', path: '/v1/users/me', body: { push_enabled } })
  for (const token of tokens) await register(token)
  if (prng.chance(0.15)) await changePush(false)
  while (isActive() && tokens.length > 0) {
    await time.sleep(prng.int(5_000, 40_000))
    if (!isActive()) return
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
  const listed = await client.request({ method: 'GET', path: '/v1/devices' })
  if (listed?.status !== 200) return
  const [first] = (JSON.parse(listed.body) as { data: { id: string }[] }).data
  if (first) await client.request({ method: 'DELETE', path: `/v1/devices/${first.id}` })
}
