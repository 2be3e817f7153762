import { type Static, Type } from 'typebox'
import { notificationTextSchema } from '../push/notification-text.ts'

/** The push that a project's creator gets for each change; a change without a text only becomes an event. */
export const projectNotificationsSchema = Type.Object(
  {
    created: Type.Optional(notificationTextSchema),
    updated: Type.Optional(notificationTextSchema),
    deleted: Type.Optional(notificationTextSchema),
  },
  { additionalProperties: false },
)
export type ProjectNotifications = Static<typeof projectNotificationsSchema>

export type ProjectChangeKind = keyof ProjectNotifications
