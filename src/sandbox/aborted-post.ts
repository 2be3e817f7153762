import { request as requestHttp } from 'node:http'
import { request as requestHttps } from 'node:https'

/** Closes the connection in the middle of the body, so that the receiver sees a broken request. Never rejects. */
export function postAndAbort(
  url: string,
  { body, contentType, signal }: { body: string; contentType: string; signal: AbortSignal },
): Promise<void> {
  if (!/^https?:$/.test(URL.parse(url)?.protocol ?? '')) return Promise.resolve()
  const bytes = Buffer.from(body)
  const headers = { 'content-type': contentType, 'content-length': bytes.byteLength }
  return new Promise((resolve) => {
    const request = url.startsWith('https:') ? requestHttps : requestHttp
    const sent = request(url, { method: 'POST', headers, signal })
    sent.on('error', () => {})
    sent.on('close', resolve)
    // Only after the first half is sent: before that, the receiver would not see the request at all.
    sent.write(bytes.subarray(0, bytes.byteLength / 2), () => sent.destroy())
  })
}
