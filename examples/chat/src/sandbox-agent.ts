import { textOfMessage } from '@project-api/client/ai-sdk'
import type { UIMessage } from 'ai'

/** The sandbox has no model: `sandbox` in the input says what its agent thinks, asks and answers. A real agent gets only the messages. */
export function inputOf(message: UIMessage): object {
  const content = textOfMessage(message)
  const asks = /publish|send|delete|order/i.test(content)
  const say = asks
    ? 'Done, as you decided. I noted your answer in the thread, so I will remember it in the next turn.'
    : `You wrote: “${content}”. Here is my answer, word by word. Reload this page while I write: nothing is lost, because the service keeps the run and this page only watches it. The callback of this run is lost on purpose, and the job still ends.`
  return {
    messages: [{ role: 'user', content }],
    sandbox: {
      think: 'The user wants an answer. I keep it short.',
      say,
      duration_ms: 4_000,
      ...(asks && { pause: `Shall I really do this: “${content}”?` }),
    },
  }
}
