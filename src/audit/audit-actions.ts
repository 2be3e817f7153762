/** Every audited action. The list of `GET /v1/audit`, its filter and its documentation derive from here. */
export const AUDIT_ACTIONS = {
  'service_account.created': 'a service account was created, with its first key',
  'service_account.rotated': 'a service account got a new key',
  'service_account.revoked': 'a service account was revoked',
  'user.changed': 'a caller with `write:users` changed the profile of another user',
  'user.blocked': 'a user was blocked',
  'user.unblocked': 'a user was unblocked',
  'user.limits_changed': 'the usage limits of a user were changed',
  'user.exported': 'the data of a user was exported',
  'user.erasure_started': 'the erasure of a user was started',
  'user.erased': 'the erasure of a user was completed',
  'project.changed': 'a project of another caller was changed',
  'project.deleted': 'a project of another caller was deleted',
  'notification.sent': 'a notification was sent',
  'callback.replayed': 'a stored callback was processed again',
  'operation.started': 'an operation on many jobs or callbacks was started; each of its changes is listed too',
  'operation.cancelled': 'an operation was stopped',
  'delivery.resent': 'a failed delivery was queued again',
  'webhook_endpoint.created': 'a webhook endpoint was created, with its first secret',
  'webhook_endpoint.changed': 'a webhook endpoint was changed, disabled or enabled',
  'webhook_endpoint.rotated': 'a webhook endpoint got a new secret',
  'webhook_endpoint.deleted': 'a webhook endpoint was deleted',
  'webhook_endpoint.tested': 'a test was sent to a webhook endpoint',
  'webhook_endpoint.recovered': 'the events since a time were queued again for a webhook endpoint',
  'webhook_delivery.resent': 'a webhook delivery was queued again',
  'job.started': 'a job was started for another user',
  'job.cancelled': 'the cancellation of another user’s job was requested',
  'job.resumed': 'a job of another user got its answer',
  'job.deleted': 'a job of another user was deleted',
  'job.retried': 'a job of another user was repeated',
  'job.input_replaced': 'the input of another user’s waiting turn was replaced',
  'conversation.deleted': 'a conversation of another user was deleted',
  'job.checked': 'the runtime was asked about a job of another user',
} as const satisfies Record<string, string>

export type AuditAction = keyof typeof AUDIT_ACTIONS

export const AUDIT_ACTOR_KINDS = ['user', 'service_account', 'command_line'] as const
export type AuditActorKind = (typeof AUDIT_ACTOR_KINDS)[number]

export const AUDIT_OBJECT_KINDS = [
  'service_account',
  'user',
  'project',
  'notification',
  'callback',
  'job',
  'conversation',
  'operation',
  'delivery',
  'webhook_endpoint',
  'webhook_delivery',
] as const
export type AuditObjectKind = (typeof AUDIT_OBJECT_KINDS)[number]
