import { request as requestHttp } from 'node:http'
import { request as requestHttps } from 'node:https'

/** The receiver sees a request begin, and its connection close before the body is whole. Never rejects. */
export function breakOff(
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
    // Only once the first half has left: before that, the receiver would not notice a thing.
    sent.write(bytes.subarray(0, bytes.byteLength / 2), () => sent.destroy())
  })
}
