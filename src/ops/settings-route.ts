import { Type } from 'typebox'
import type { App } from '../http/app-instance.ts'
import { scopes } from '../http/gate/access.ts'
import { onePage, pageOf } from '../http/paging.ts'

type SettingValue = string | number | boolean | null | readonly string[]

const Setting = Type.Object(
  {
    name: Type.String({ description: 'The environment variable.' }),
    value: Type.Unsafe<SettingValue>({
      // The serializer takes the first type that fits, and writes an array as a string if that comes first.
      type: ['array', 'string', 'number', 'boolean', 'null'],
      items: { type: 'string' },
      description: 'The effective value, which may be the default; null if there is none. A secret is `[redacted]`.',
    }),
    secret: Type.Boolean({ description: 'Whether the setting holds a secret, so that its value is never shown.' }),
  },
  { title: 'Setting', examples: [{ name: 'PORT', value: 8080, secret: false }] },
)

const getSettings = {
  operationId: 'getSettings',
  tags: ['Operations'],
  summary: 'Get the effective settings',
  description: 'The settings of the node that answers. Secrets are never shown.',
  response: {
    200: Type.Object(
      { ...pageOf(Setting).properties, data: Type.Array(Setting, { description: 'By name.' }) },
      { title: 'SettingList', examples: [onePage([{ name: 'PORT', value: 8080, secret: false }])] },
    ),
  },
}

/** The settings of this node, for operators. They are read for each request, because a reload may change secrets. */
export function settingsRoute(
  app: App,
  readSettings: () => { name: string; value: SettingValue; secret: boolean }[],
): void {
  const config = { access: scopes('read:operations') }
  app.get('/v1/settings', { config, schema: getSettings }, () => onePage(readSettings()))
}
