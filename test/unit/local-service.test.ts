import assert from 'node:assert/strict'
import { chmodSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { after, describe, test } from 'node:test'
import { CommandLineKey } from '../../src/auth/command-line-key.ts'
import { isWellFormedServiceKey } from '../../src/auth/service-key.ts'
import { localServiceFile, publishLocalService, readLocalService } from '../../src/cli/startup/local-service.ts'
import { type Log, silentLog } from '../../src/core/log.ts'
import { systemRandom } from '../../src/core/random.ts'

describe('the file for commands on the machine of an embedded node', () => {
  const folder = mkdtempSync(join(tmpdir(), 'local-service-'))
  after(() => rmSync(folder, { recursive: true }))
  let folders = 0
  const freshFolder = () => {
    folders += 1
    const made = join(folder, `${folders} with space`)
    mkdirSync(made)
    return made
  }
  const publish = (dataDir: string, address: string, log: Log = silentLog) => {
    const listening = { address, port: 8080, family: address.includes(':') ? 'IPv6' : 'IPv4' }
    return publishLocalService({ dataDir, key: { text: 'pak_x' } }, { listening, log })
  }

  test('the file has the address and the key, is for its owner only, and is gone after the stop', () => {
    const dataDir = freshFolder()
    const remove = publish(dataDir, '127.0.0.1')
    assert.deepEqual(readLocalService(dataDir), { url: 'http://127.0.0.1:8080', key: 'pak_x' })
    assert.deepEqual(readdirSync(dataDir), ['command-line.json'])
    if (process.platform !== 'win32') assert.equal(statSync(localServiceFile(dataDir)).mode & 0o777, 0o600)
    remove()
    assert.equal(readLocalService(dataDir), null)
    assert.deepEqual(readdirSync(dataDir), [])
    remove()
  })

  test('a file that a crashed node left lends neither its text nor its mode', () => {
    const dataDir = freshFolder()
    for (const file of [localServiceFile(dataDir), `${localServiceFile(dataDir)}.new`]) {
      writeFileSync(file, '{"url":"http://127.0.0.1:1","key":"pak_old"}')
      chmodSync(file, 0o666)
    }
    publish(dataDir, '::1')
    assert.deepEqual(readLocalService(dataDir), { url: 'http://[::1]:8080', key: 'pak_x' })
    if (process.platform !== 'win32') assert.equal(statSync(localServiceFile(dataDir)).mode & 0o777, 0o600)
    assert.doesNotMatch(readFileSync(localServiceFile(dataDir), 'utf8'), /pak_old/)
  })

  test('a node on every interface is reached on loopback; a node on another address has no file', () => {
    const dataDir = freshFolder()
    for (const [address, url] of [
      ['0.0.0.0', 'http://127.0.0.1:8080'],
      ['::', 'http://[::1]:8080'],
      ['127.0.0.2', 'http://127.0.0.2:8080'],
    ] as const) {
      publish(dataDir, address)
      assert.equal(readLocalService(dataDir)?.url, url)
    }
    publish(dataDir, '192.0.2.1')
    assert.equal(readLocalService(dataDir), null)
  })

  test('a node whose folder cannot be written starts without the file, and says so in its log', () => {
    const events: string[] = []
    const log = { ...silentLog, warn: (_fields: object, event: string) => void events.push(event) }
    publish(join(folder, 'missing'), '127.0.0.1', log)
    assert.deepEqual(events, ['command_line.file_not_changed'])
    assert.equal(readLocalService(join(folder, 'missing')), null)
  })

  test('a file of another form is no service', () => {
    const dataDir = freshFolder()
    for (const text of ['', '{', 'null', '{"url":"http://127.0.0.1:1"}', '{"url":1,"key":2}']) {
      writeFileSync(localServiceFile(dataDir), text)
      assert.equal(readLocalService(dataDir), null)
    }
  })

  test('each start has a key of its own, in the form of a service key', () => {
    const make = () => new CommandLineKey({ random: systemRandom, user: 'operator' })
    const [one, other] = [make(), make()]
    assert.ok(isWellFormedServiceKey(one.text))
    assert.ok(one.matches(one.text))
    for (const key of ['', 'pak_', other.text, `${one.text} `, one.text.replace(/.$/, 'é'), one.text.toLowerCase()]) {
      assert.equal(one.matches(key), false, key)
    }
  })
})
