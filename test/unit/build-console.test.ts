import assert from 'node:assert/strict'
import {
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  symlinkSync,
  utimesSync,
  writeFileSync,
} from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { test } from 'node:test'
import { fileURLToPath } from 'node:url'
import { buildConsole } from '../../src/cli/startup/build-console.ts'

const MODULES = fileURLToPath(new URL('../../node_modules', import.meta.url))

test('the console is built when its sources are newer; a broken source keeps the last build and is reported', async () => {
  const root = mkdtempSync(join(tmpdir(), 'build-console-'))
  const at = (...path: string[]) => join(root, 'console', ...path)
  const builtText = () =>
    readdirSync(at('dist', 'assets'))
      .map((name) => readFileSync(at('dist', 'assets', name), 'utf8'))
      .join()
  try {
    mkdirSync(at('src'), { recursive: true })
    writeFileSync(at('package.json'), '{"type":"module"}')
    writeFileSync(at('index.html'), '<script type="module" src="/src/main.ts"></script>')
    writeFileSync(at('src', 'main.ts'), 'document.title = "first build"')

    assert.equal(await buildConsole({ root }), null, 'without the builder there is nothing to do')
    assert.deepEqual(readdirSync(at()).sort(), ['index.html', 'package.json', 'src'])

    symlinkSync(MODULES, at('node_modules'))
    assert.equal(await buildConsole({ root }), null)
    assert.match(builtText(), /first build/)

    const past = new Date(Date.now() - 3_600_000)
    writeFileSync(at('src', 'main.ts'), 'document.title = "second build"')
    utimesSync(at('src', 'main.ts'), past, past)
    assert.equal(await buildConsole({ root }), null)
    assert.match(builtText(), /first build/, 'a source that is older than the build changes nothing')

    const future = new Date(Date.now() + 3_600_000)
    utimesSync(at('src', 'main.ts'), future, future)
    assert.equal(await buildConsole({ root }), null)
    assert.match(builtText(), /second build/)

    writeFileSync(at('src', 'main.ts'), 'document.title = "third')
    utimesSync(at('src', 'main.ts'), future, future)
    assert.match((await buildConsole({ root })) ?? '', /^The console could not be built: /)
    assert.match(builtText(), /second build/)
    assert.deepEqual(readdirSync(at()).sort(), ['dist', 'index.html', 'node_modules', 'package.json', 'src'])
  } finally {
    rmSync(root, { recursive: true, force: true })
  }
})
