/** A pure module, and the tests that must fail for every change of it. */
export interface MutatedModule {
  /** Below `src/`, without the extension. */
  path: string
  /** Below `test/`, without the extension. */
  tests: readonly string[]
}

const module = (path: string, ...tests: string[]): MutatedModule => ({ path, tests })

/** Modules that compute an answer from their arguments, with the tests that run them without a database or a network. */
export const MODULES: readonly MutatedModule[] = [
  module('jobs/job-machine', 'unit/job-machine'),
  module('jobs/job-types', 'unit/job-types'),
  module('jobs/answers', 'unit/answers'),
  module('jobs/settlement/verdict', 'unit/verdict'),
  module('jobs/output', 'unit/job-output'),
  module('auth/token-format', 'unit/token-format', 'unit/token-algorithms'),
  module('auth/token-claims', 'unit/token-verifier', 'unit/token-algorithms'),
  module('auth/scopes', 'unit/scopes', 'unit/token-algorithms', 'unit/config'),
  module('auth/issuer/cognito', 'unit/config'),
  module('auth/issuer/jwk', 'unit/key-set', 'unit/token-algorithms'),
  module('auth/service-key', 'unit/service-key'),
  module('auth/callback-authenticity', 'unit/callback-authenticity'),
  module('limits/client-address', 'unit/client-address'),
  module('limits/rate-limit-headers', 'unit/rate-limit-headers'),
  module('http/admission/spent-addresses', 'unit/spent-addresses'),
  module('limits/memory-counter', 'unit/memory-counter'),
  module('push/outbox/delivery-judge', 'unit/delivery-judge'),
  module('push/outbox/delivery-times', 'unit/delivery-judge'),
  module('push/outbox/disable-breaker', 'unit/disable-breaker'),
  module('push/fcm/fcm-verdict', 'unit/fcm-verdict'),
  module('push/fcm/fcm-message', 'unit/fcm-message'),
  module('core/async/backoff', 'unit/backoff'),
]
