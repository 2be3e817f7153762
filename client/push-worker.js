/**
 * The service worker for pushes on the web. Every push shows a notification, and a click on it opens the job.
 *
 * Serve this file from the root of your site as it is, or load it in your own service worker with `importScripts`.
 */
{
  const TITLE = 'New message'
  const START_PAGE = new URL('./', self.location.href).href

  /** The first of the values that is a text. A push may carry anything. */
  const textOf = (...values) => values.find((value) => typeof value === 'string' && value !== '')

  const parse = (data) => {
    try {
      return data.json()
    } catch {
      // A push without data, or of another sender.
      return null
    }
  }

  /** Reads the form in which FCM delivers a message to a browser. It has the link in one of two fields. */
  const read = (push) => {
    const message = Object(parse(push))
    const [notification, data, options] = [message.notification, message.data, message.fcmOptions].map(Object)
    return {
      title: textOf(notification.title) ?? TITLE,
      body: textOf(notification.body) ?? '',
      tag: textOf(notification.tag, message.fcmMessageId) ?? 'message',
      link: textOf(options.link, notification.click_action, data.link) ?? '',
    }
  }

  /** Also while a page of the app is in front: Safari ends the subscription of a site after a few silent pushes. */
  const show = async ({ title, body, tag, link }) => {
    const [earlier] = await self.registration.getNotifications({ tag })
    // A notification replaces an earlier one with its tag. It alerts the user again only if it says something else.
    const renotify = earlier !== undefined && (earlier.title !== title || earlier.body !== body)
    await self.registration.showNotification(title, { body, tag, renotify, data: { link } })
  }

  /** The page to open: links to apps and messages without a link lead to the start page. */
  const addressOf = (link) => {
    try {
      const { href, protocol } = new URL(link, START_PAGE)
      return ['https:', 'http:'].includes(protocol) ? href : START_PAGE
    } catch {
      return START_PAGE
    }
  }

  const open = async (url) => {
    const windows = await self.clients.matchAll({ type: 'window', includeUncontrolled: true })
    const found = windows.find((window) => window.url === url)
    if (found === undefined) return self.clients.openWindow(url)
    // Some browsers report the address that the window was loaded with. The page may show something else by now.
    found.postMessage({ type: 'notification-click', url })
    return found.focus()
  }

  self.addEventListener('push', (event) => event.waitUntil(show(read(event.data))))

  self.addEventListener('notificationclick', (event) => {
    event.notification.close()
    event.waitUntil(open(addressOf(event.notification.data?.link ?? '')))
  })
}
