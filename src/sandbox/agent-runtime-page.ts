import { DIALS } from './agent-runtime-dials.ts'
import { type PageAnswer, preparePage } from './page.ts'

const render = preparePage({ file: './agent-runtime-page.html', isPanel: true })

/** The page with the dials and what they do. */
export function renderAgentRuntimePage(): PageAnswer {
  return render({ dials: DIALS })
}
