import type { ChildProcess } from 'node:child_process'
import { once } from 'node:events'

const TASK_TIMEOUT_MS = 60_000

/** The next message of the process; rejects if the process ends, or takes too long. */
export async function answerOf<T>(child: ChildProcess): Promise<T> {
  const over = new AbortController()
  const signal = AbortSignal.any([over.signal, AbortSignal.timeout(TASK_TIMEOUT_MS)])
  const gone = once(child, 'exit', { signal }).then(() => {
    throw new Error('A process of the comparison ended: see above')
  })
  try {
    const [answer] = await Promise.race([once(child, 'message', { signal }), gone])
    return answer as T
  } finally {
    gone.catch(() => {})
    over.abort()
  }
}
