import assert from 'node:assert/strict'
import { readFileSync } from 'node:fs'
import { describe, test } from 'node:test'
import { EXIT } from '../../src/cli/io.ts'
import { parseConfig } from '../../src/config.ts'

const UNIT = readFileSync(new URL('../../deploy/systemd/project-api.service', import.meta.url), 'utf8')
const SETTINGS = { ISSUER_URL: 'https://issuer.example.com', WEBHOOK_SECRET: 'a'.repeat(32) }
const settingOf = (name: string) => new RegExp(`^${name}=(.*)$`, 'm').exec(UNIT)?.[1]

describe('the systemd unit', () => {
  test('the systemd unit runs as the user that its instructions let read the files of secrets', () => {
    const user = settingOf('User')
    assert.ok(user)
    assert.match(UNIT, new RegExp(`^# +useradd .* ${user}$`, 'm'))
    assert.match(UNIT, new RegExp(`^# +chown .* root:${user} /etc/project-api/secrets$`, 'm'))
    assert.equal(settingOf('DynamicUser'), undefined)
  })

  test('the systemd unit gives a stop longer than the drain, and does not repeat a start with wrong settings', () => {
    const { shutdownTimeoutMs } = parseConfig(SETTINGS, () => '')
    assert.ok(Number(settingOf('TimeoutStopSec')) * 1_000 > shutdownTimeoutMs)
    assert.deepEqual(settingOf('RestartPreventExitStatus')?.split(' ').map(Number), [EXIT.usage, EXIT.config])
  })

  test('the systemd unit takes from the service what it does not need: system calls, other processes, the clock', () => {
    const wanted = {
      UMask: '0077',
      SystemCallErrorNumber: 'EPERM',
      ProtectProc: 'invisible',
      RestrictSUIDSGID: 'yes',
      ProtectKernelLogs: 'yes',
      ProtectClock: 'yes',
    }
    assert.deepEqual(Object.fromEntries(Object.keys(wanted).map((name) => [name, settingOf(name)])), wanted)
    const filters = [...UNIT.matchAll(/^SystemCallFilter=(.*)$/gm)].map(([, calls]) => calls)
    assert.deepEqual(filters, ['@system-service @pkey', '~@privileged'], 'the first one allows, the second one removes')
    // V8 compiles code while it runs.
    assert.equal(settingOf('MemoryDenyWriteExecute'), undefined)
  })
})
