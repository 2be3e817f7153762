import assert from 'node:assert/strict'
import { spawn } from 'node:child_process'
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { test } from 'node:test'
import { findProgram } from '../support/binaries.ts'
import { isForDev, readPages, shellBlocksOf } from '../support/doc-pages.ts'
import { freshFolder, Program } from '../support/program.ts'
import { isCi } from '../support/services.ts'

const needsCurl = { skip: findProgram('curl') === undefined && !isCi() && 'needs curl, which is not installed' }

/** Each command must be answered with 2xx. `ID` is the id of the last answer, as a reader copies it. */
const PRELUDE = `set -euo pipefail
ID=$(cat id 2>/dev/null || true)
curl() {
  command curl --fail-with-body "$@" | tee answer
  new=$(grep -oE '"id":"[a-z]+_[^"]+' answer | head -n 1 | cut -d '"' -f 4 || true)
  ID=\${new:-$ID}
  echo "$ID" > id
}
`

test('every command of the documentation that calls a running dev works when pasted', needsCurl, async () => {
  const dev = new Program(['dev'], { settings: { PORT: '0' } })
  const [, start] = await dev.untilSaid(/Start here +(http\S+)[\s\S]*Ctrl-C.*\n/)
  const variables = (await (await fetch(`${start}/environment`)).json()) as Record<string, string>
  const env = { PATH: process.env.PATH, ...variables, TOKEN: variables.ADA }
  const folder = freshFolder()
  const scripts = readPages().flatMap(shellBlocksOf).filter(isForDev)
  assert.ok(scripts.length > 0)
  for (const { page, script } of scripts) {
    const { output, ok } = await paste(`${PRELUDE}${script}`, { cwd: folder, env })
    assert.ok(ok, `${page}:\n${script}${output}${readFileSync(join(folder, 'answer'), 'utf8')}`)
  }
})

/** A stream does not end by itself: it works once its first event or comment has come. */
function paste(
  script: string,
  options: { cwd: string; env: NodeJS.ProcessEnv },
): Promise<{ ok: boolean; output: string }> {
  const child = spawn('bash', ['-c', script], { ...options, detached: true, stdio: ['ignore', 'pipe', 'pipe'] })
  const isStream = script.includes('curl -sN')
  let output = ''
  return new Promise((resolve, reject) => {
    let isOver = false
    const hear = (text: string) => {
      output += text
      if (!isStream || isOver || !/^(?::|event:)/m.test(output) || child.pid === undefined) return
      // The pipe may have more text: by then the process is gone.
      isOver = true
      process.kill(-child.pid, 'SIGKILL')
      resolve({ ok: true, output })
    }
    child.stdout.setEncoding('utf8').on('data', hear)
    child.stderr.setEncoding('utf8').on('data', hear)
    child.once('error', reject)
    child.once('close', (code) => resolve({ ok: code === 0, output }))
  })
}
