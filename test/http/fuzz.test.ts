import { after, describe, test } from 'node:test'
import type { Engine } from '../../src/db/database.ts'
import { FuzzBench, nameOf } from '../support/fuzz-bench.ts'
import { fuzzSettings } from '../support/fuzz-settings.ts'
import { type JobWorld, startJobWorld, type WorldOptions } from '../support/job-world.ts'
import { forEachService } from '../support/service.ts'

const { seed, cases } = fuzzSettings()
const AT_ONCE = { concurrency: 4 }
/** The service refuses these requests if no runtime is configured. */
const NEEDS_RUNTIME = ['POST /jobs', 'POST /jobs/{id}/cancel', 'POST /jobs/{id}/resume']

/** PostgreSQL refuses more values than SQLite does, so it gets all cases. The other service gets the first of them. */
const CASES_ON: Record<Engine, number> = { postgres: cases, sqlite: Math.ceil(cases / 5) }

describe(`hostile input, FUZZ_SEED=${seed} FUZZ_CASES=${cases}`, () => {
  forEachService((under) => {
    const casesHere = CASES_ON[under.engine.name]
    // Concurrent requests change the same records. One that waits too long for the other is a 503.
    const start = async (options: WorldOptions) =>
      startJobWorld(under, { ...options, db: await under.engine.openDatabase({ waitsLong: true }) })
    const withRuntime = sharedBench(() => start({}))
    const withoutRuntime = sharedBench(() => start({ runtime: false }))

    test('every answer is one its operation declares, of the shape declared, and none is a 5xx', AT_ONCE, async (t) => {
      const bench = await withRuntime()
      const runs = bench.operations.map((named) =>
        t.test(nameOf(named), () => bench.fuzz(named, { cases: casesHere, mayBeUnavailable: false })),
      )
      await Promise.all(runs)
    })

    test('only the operations that need a runtime are unavailable without one', AT_ONCE, async (t) => {
      const bench = await withoutRuntime()
      const runs = bench.operations
        .filter(({ path }) => /^\/(jobs|webhooks)/.test(path))
        .map((named) => {
          const mayBeUnavailable = NEEDS_RUNTIME.includes(nameOf(named))
          return t.test(nameOf(named), () => bench.fuzz(named, { cases: Math.ceil(casesHere / 5), mayBeUnavailable }))
        })
      await Promise.all(runs)
    })

    test('any method on any path gets an envelope or a good answer', async () => {
      const bench = await withRuntime()
      await bench.fuzzPaths(casesHere * 2)
    })
  })
})

function sharedBench(world: () => Promise<JobWorld>): () => Promise<FuzzBench> {
  let bench: Promise<FuzzBench> | undefined
  after(async () => (await bench)?.close())
  return () => {
    bench ??= world().then((opened) => FuzzBench.open(opened))
    return bench
  }
}
