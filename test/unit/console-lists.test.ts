import assert from 'node:assert/strict'
import { test } from 'node:test'
import { AUDIT_ACTIONS as SHOWN } from '../../console/src/pages/audit-actions.ts'
import { AUDIT_ACTIONS } from '../../src/audit/audit-actions.ts'

test('the console filters the audit trail by every action that the service records', () => {
  assert.deepEqual(SHOWN, Object.keys(AUDIT_ACTIONS))
})
