import { type PageResponse, preparePage } from '../page.ts'
import { PUSH_PREFIXES } from './answers.ts'
import { PUSH_FAULTS } from './faults.ts'

const render = preparePage({ file: 'push-provider/page.html', isPanel: true })

/** The page that shows the messages that arrived and the fault settings. */
export function renderPushProviderPage(consoleUrl: string | null): PageResponse {
  return render({ consoleUrl, faults: PUSH_FAULTS, prefixes: PUSH_PREFIXES })
}
