import assert from 'node:assert/strict'
import { test } from 'node:test'
import { MAX_JSON_DEPTH } from '../../src/core/json.ts'
import { MAX_PAGE_BYTES } from '../../src/db/bounded-page.ts'
import { MAX_LOCKED } from '../../src/db/write-batcher.ts'
import { CALLER_BOUNDS, EXPECTED_BYTES, SMALL_ANSWER } from '../../src/http/admission/admission.ts'
import { ANSWER_BOUNDS, BODY_BOUNDS } from '../../src/http/admission/byte-budget.ts'
import { HANDLER_DEADLINE } from '../../src/http/admission/handler-deadline.ts'
import { BUSY_TURN, OVERLOAD_BOUNDS } from '../../src/http/admission/overload.ts'
import { FAILED_CHECKS_PER_SECOND } from '../../src/http/admission/spent-addresses.ts'
import { STALLED_READER } from '../../src/http/admission/stalled-readers.ts'
import { SERVER_LIMITS } from '../../src/http/server/server-limits.ts'
import { readPages } from '../support/doc-pages.ts'

const KB = 1024
const MB = 1024 * KB
/** Limits that their modules do not export. */
const PRIVATE = [
  'body of a callback',
  'values of a JSON body',
  'rest of a refused request',
  'unfinished jobs of one owner',
  'records of a page',
  'documents of a batch of a deletion',
  'time of a statement',
  'of it, time in which the statement waits',
  'time in which a transaction waits',
  'single statements on one shared connection',
  'transactions that wait',
  'unread bytes of a stream',
  'open streams',
]

const size = (bytes: number) => (bytes < MB ? `${bytes / KB} KB` : `${bytes / MB} MB`)
const time = (ms: number) => `${ms / 1_000} s`
const count = (number: number) => number.toLocaleString('en')

function sharesOf({ principal, unproven }: typeof BODY_BOUNDS | typeof ANSWER_BOUNDS): string[][] {
  return [
    ['of them, of all principals', size(principal.totalBytes)],
    ['of them, of one principal', size(principal.callerBytes)],
    ['of them, of all unproven callers', size(unproven.totalBytes)],
    ['of them, of one address', size(unproven.callerBytes)],
  ]
}

test('the table of bounds in docs/reliability.md has the numbers of the code', () => {
  const { change, ordinary, runtime, callback } = OVERLOAD_BOUNDS
  const expected = [
    ['body of a request', size(SERVER_LIMITS.bodyLimit)],
    ['headers', size(SERVER_LIMITS.http.maxHeaderSize)],
    ['lines of headers', count(SERVER_LIMITS.maxHeadersCount)],
    ['levels of a JSON body', count(MAX_JSON_DEPTH)],
    ['time until the headers have arrived', time(SERVER_LIMITS.http.headersTimeout)],
    ['time until the request has arrived', time(SERVER_LIMITS.requestTimeout)],
    [
      'time without data on a connection, or in which the reader of a stream takes nothing',
      time(SERVER_LIMITS.connectionTimeout),
    ],
    ['time in which a reader takes nothing of an answer over 64 KB, whatever it sends', time(STALLED_READER.afterMs)],
    ['time on an idle connection', time(SERVER_LIMITS.keepAliveTimeout)],
    ['time of a handler, including the wait for room', time(HANDLER_DEADLINE.rounds * HANDLER_DEADLINE.roundMs)],
    [
      'checks of credentials that fail in a second, of one address that is over its rate limit',
      count(FAILED_CHECKS_PER_SECOND),
    ],
    ['changes in progress', count(change.inFlight)],
    [
      `changes in progress, if the first has waited for ${time(change.queue?.forMs ?? 0)}`,
      count(change.queue?.length ?? 0),
    ],
    ['reads in progress', count(ordinary.inFlight)],
    ['requests in progress that may wait for the agent runtime', count(runtime.inFlight)],
    ['callbacks in progress', count(callback.inFlight)],
    ['of them, those that wait for locks', count(MAX_LOCKED.items)],
    ['of those, of one owner', count(MAX_LOCKED.together)],
    [`time in which one turn of the event loop accepts more than ${BUSY_TURN} requests`, time(ordinary.turnMs)],
    [`time in which one turn of the event loop accepts more than ${BUSY_TURN} callbacks`, time(callback.turnMs)],
    ['reads in progress of one principal', count(CALLER_BOUNDS.read)],
    ['changes in progress of one principal', count(CALLER_BOUNDS.change)],
    ['request bodies in memory', size(BODY_BOUNDS.totalBytes)],
    ...sharesOf(BODY_BOUNDS),
    [`answers over ${size(SMALL_ANSWER)} that are not taken`, size(ANSWER_BOUNDS.totalBytes)],
    ...sharesOf(ANSWER_BOUNDS),
    ['reserved in the share of a principal for a page, a callback or an export', size(EXPECTED_BYTES.page)],
    [
      'reserved in the share of a principal for an answer with one document',
      `${size(EXPECTED_BYTES.document)}; four times the document if it is larger`,
    ],
    ['documents of a page', size(MAX_PAGE_BYTES)],
  ]
  const page = readPages().find(({ path }) => path === 'docs/reliability.md')
  const table = page?.text.split('\n### Bounds\n')[1] ?? ''
  const rows = Array.from(table.matchAll(/^\| ([^|]+) \| ([^|]+) \|/gm), ([, what = '', bound = '']) => [what, bound])
  const listed = rows.slice(1).filter(([what = '']) => !PRIVATE.some((name) => what.startsWith(name)))
  assert.deepEqual(listed, expected)
})
