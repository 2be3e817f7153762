import assert from 'node:assert/strict'
import { test } from 'node:test'
import type { Charge } from '../../src/limits/limiter.ts'
import { rateLimitHeaders } from '../../src/limits/rate-limit-headers.ts'

const admitted: Charge = { tier: 'authenticated', limit: 1_000, remaining: 999, resetMs: 59_001, exceeded: false }
const refused: Charge = { tier: 'unauthenticated', limit: 100, remaining: 0, resetMs: 12_000, exceeded: true }

test('the default form names policy, limit, remaining and the reset in whole seconds, rounded up', () => {
  assert.deepEqual(rateLimitHeaders(admitted, 'draft-6'), {
    'ratelimit-policy': '1000;w=60',
    'ratelimit-limit': '1000',
    'ratelimit-remaining': '999',
    'ratelimit-reset': '60',
  })
})

test('the newer form names the tier in both fields', () => {
  assert.deepEqual(rateLimitHeaders(admitted, 'draft-8'), {
    'ratelimit-policy': '"authenticated";q=1000;w=60',
    ratelimit: '"authenticated";r=999;t=60',
  })
})

test('a refused request has Retry-After, in either form', () => {
  assert.deepEqual(rateLimitHeaders(refused, 'draft-6'), {
    'ratelimit-policy': '100;w=60',
    'ratelimit-limit': '100',
    'ratelimit-remaining': '0',
    'ratelimit-reset': '12',
    'retry-after': '12',
  })
  assert.deepEqual(rateLimitHeaders(refused, 'draft-8'), {
    'ratelimit-policy': '"unauthenticated";q=100;w=60',
    ratelimit: '"unauthenticated";r=0;t=12',
    'retry-after': '12',
  })
})

test('Retry-After is never zero', () => {
  const ending = { ...refused, resetMs: 1 }
  assert.equal(rateLimitHeaders(ending, 'draft-6')['retry-after'], '1')
  assert.equal(rateLimitHeaders({ ...refused, resetMs: 0 }, 'draft-8')['retry-after'], '1')
})
