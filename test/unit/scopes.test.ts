import assert from 'node:assert/strict'
import { readFileSync } from 'node:fs'
import { test } from 'node:test'
import { ADMIN_SCOPE, hasAnyScope, parseScopesMap, SCOPES } from '../../src/auth/scopes.ts'
import { SANDBOX_SCOPES } from '../../src/sandbox/identity-provider/users.ts'

test('any one of the required scopes is enough, and admin:* is enough for all', () => {
  assert.equal(ADMIN_SCOPE, 'admin:*')
  assert.ok(hasAnyScope(['read:users'], ['read:users']))
  assert.ok(hasAnyScope(['write:projects', 'read:users'], ['read:projects', 'read:users']))
  assert.ok(hasAnyScope(['admin:*'], ['read:users']))
  assert.ok(hasAnyScope(['admin:*'], []))
  assert.equal(hasAnyScope([], ['read:users']), false)
  assert.equal(hasAnyScope(['read:users'], []), false)
  assert.equal(hasAnyScope(['read:users'], ['write:users']), false)
  assert.equal(hasAnyScope(['READ:USERS', 'read:user', 'admin', 'admin:'], ['read:users']), false)
})

test('every scope has a name of the form action:resource and a description', () => {
  const scopes = Object.entries(SCOPES)
  assert.ok(scopes.length >= 5)
  for (const [name, description] of scopes) {
    assert.match(name, /^(?:read|write|admin):(?:[a-z]+|\*)$/)
    assert.match(description, /^[A-Z].{9,}/)
  }
})

test('the sandbox and the console offer every scope', () => {
  assert.deepEqual(SANDBOX_SCOPES.toSorted(), Object.keys(SCOPES).toSorted())
  const keysPage = readFileSync(new URL('../../console/src/pages/keys.tsx', import.meta.url), 'utf8')
  for (const scope of Object.keys(SCOPES)) assert.ok(keysPage.includes(`'${scope}'`), scope)
})

test('a map of scopes names what is wrong in it', () => {
  const map = parseScopesMap(['a = read:users   write:users ', 'urn:x=1=admin:*'])
  assert.deepEqual(Object.fromEntries(map), { a: ['read:users', 'write:users'], 'urn:x=1': ['admin:*'] })
  for (const entry of ['editor', '=admin:*', ' = admin:*']) {
    assert.throws(() => parseScopesMap([entry]), {
      message: `holds "${entry}", which does not have the form theirs=ours`,
    })
  }
  assert.throws(() => parseScopesMap(['a=admin:*', 'a =read:users']), { message: 'names "a" twice' })
  for (const ours of ['', 'x', 'toString']) {
    const message = `maps "a" to "${ours}", which is not a scope of this service`
    assert.throws(() => parseScopesMap([`a=${ours}`]), { message })
  }
})
