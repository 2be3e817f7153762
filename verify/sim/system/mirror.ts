/**
 * A proxy for an object that is replaced from time to time: every access, at any depth, goes to the current one. Building
 * an application compiles some hundred schemas. With a mirror of its services, one build serves any number of boots.
 */
export function mirror<T extends object>(current: () => T): T {
  const members = new Map<PropertyKey, unknown>()
  return new Proxy({} as T, {
    get: (_target, name) => {
      const value = Reflect.get(current(), name)
      const isDeep = typeof value === 'function' || (typeof value === 'object' && value !== null)
      if (!isDeep) return value
      let member = members.get(name)
      if (member === undefined || typeof member !== typeof value) {
        member =
          typeof value === 'function' ? callOf(current, name) : mirror(() => Reflect.get(current(), name) as object)
        members.set(name, member)
      }
      return member
    },
    has: (_target, name) => Reflect.has(current(), name),
  })
}

/** The same with real properties on its first level, so that it can be spread. */
export function mirrorMembers<T extends object>(template: T, current: () => T): T {
  const deep = mirror(current)
  return Object.fromEntries(Object.keys(template).map((name) => [name, Reflect.get(deep, name)])) as T
}

function callOf<T extends object>(current: () => T, name: PropertyKey): (...args: unknown[]) => unknown {
  return (...args) => {
    const owner = current()
    return (Reflect.get(owner, name) as (...args: unknown[]) => unknown).apply(owner, args)
  }
}
