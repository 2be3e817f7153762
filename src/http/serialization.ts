import { createRequire } from 'node:module'
import type { RouteDefinition, Serializer, SerializerFactory } from '@fastify/fast-json-stringify-compiler'

/** Fastify's own serializers, each compiled when its route first answers: all of them at once are a tenth of the start. */
export const serializersOnFirstUse: SerializerFactory = (externalSchemas, options) => {
  let compiler: ReturnType<SerializerFactory> | undefined
  const compile = (route: RouteDefinition): Serializer => {
    compiler ??= loadFactory()(externalSchemas, options)
    return compiler(route)
  }
  return (route) => {
    let serialize: Serializer | undefined
    return (document) => {
      serialize ??= compile(route)
      return serialize(document)
    }
  }
}

function loadFactory(): SerializerFactory {
  const load = createRequire(import.meta.url)
  const { SerializerSelector } = load(
    '@fastify/fast-json-stringify-compiler',
  ) as typeof import('@fastify/fast-json-stringify-compiler')
  return SerializerSelector()
}
