import { type PageAnswer, preparePage } from '../page.ts'
import { DIALS } from './faults.ts'

const render = preparePage({ file: new URL('./page.html', import.meta.url), isPanel: true })

/** The page with the dials and what they do. */
export function renderAgentRuntimePage(): PageAnswer {
  return render({ dials: DIALS })
}
