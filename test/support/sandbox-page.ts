import assert from 'node:assert/strict'
import { Script } from 'node:vm'

/** Asserts that a page loads no other files, runs only its own scripts, and that these can be parsed. */
export async function assertStandsAlone(url: string): Promise<void> {
  const [first, second] = await Promise.all([fetch(url), fetch(url)])
  const policy = first.headers.get('content-security-policy') ?? ''
  const nonce = /script-src 'nonce-([^']+)'/.exec(policy)?.[1]
  assert.ok(nonce)
  assert.notEqual(policy, second.headers.get('content-security-policy'))
  assert.match(policy, /^default-src 'none'/)
  await second.text()

  const html = await first.text()
  assert.match(first.headers.get('content-type') ?? '', /^text\/html/)
  assert.doesNotMatch(html, /__[A-Z]+__|\son\w+=|\sstyle=/)
  assert.doesNotMatch(html, /(src|href)="(https?:)?\/\//)
  const tags = html.match(/<(script|style)[^>]*>/g) ?? []
  assert.ok(tags.length >= 4, 'what is shared, and what is its own')
  for (const tag of tags) assert.ok(tag.includes(`nonce="${nonce}"`), tag)
  const scripts = Array.from(html.matchAll(/<script nonce="[^"]+">([\s\S]*?)<\/script>/g), ([, script = '']) => script)
  assert.ok(scripts.length >= 2)
  for (const script of scripts) assert.ok(new Script(script))
}
