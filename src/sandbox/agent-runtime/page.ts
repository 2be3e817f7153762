import { type PageResponse, preparePage } from '../page.ts'
import { RUNTIME_FAULTS } from './faults.ts'

const render = preparePage({ file: 'agent-runtime/page.html', isPanel: true })

/** The page that shows the fault settings, the runs and the callbacks. */
export function renderAgentRuntimePage(consoleUrl: string | null): PageResponse {
  return render({ consoleUrl, faults: RUNTIME_FAULTS })
}
