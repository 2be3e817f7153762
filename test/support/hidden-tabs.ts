import type { BrowserContext, Page } from 'playwright-core'

/** A headless browser shows all its tabs at once. After this call, a test can hide those that are opened from then on. */
export function makeTabsHideable(context: BrowserContext): Promise<unknown> {
  return context.addInitScript(`
    let isHidden = false
    Object.defineProperty(Document.prototype, 'hidden', { get: () => isHidden })
    globalThis.hideTab = (value) => {
      isHidden = value
      document.dispatchEvent(new Event('visibilitychange'))
    }`)
}

export function hideTab(page: Page, isHidden: boolean): Promise<void> {
  return page.evaluate(`hideTab(${isHidden})`)
}
