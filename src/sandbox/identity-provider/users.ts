/** A user of the sandbox. The subject never changes, so that the user still owns the same data after a restart. */
export interface SandboxUser {
  username: string
  name: string
  sub: string
  email: string
  scopes: readonly string[]
}

export const SANDBOX_USERS: readonly SandboxUser[] = [
  {
    username: 'ada',
    name: 'Ada Lovelace',
    sub: '5e1f0c1a-0001-4a7d-9c3e-0ada0ada0ada',
    email: 'ada@example.com',
    scopes: ['read:projects', 'write:projects'],
  },
  {
    username: 'grace',
    name: 'Grace Hopper',
    sub: '5e1f0c1a-0002-4a7d-9c3e-09ace09ace09',
    email: 'grace@example.com',
    scopes: ['read:projects', 'read:users'],
  },
  {
    username: 'margaret',
    name: 'Margaret Hamilton',
    sub: '5e1f0c1a-0004-4a7d-9c3e-0a9011a9011a',
    email: 'margaret@example.com',
    scopes: ['read:operations'],
  },
  {
    username: 'admin',
    name: 'Administrator',
    sub: '5e1f0c1a-0003-4a7d-9c3e-0ad4140ad414',
    email: 'admin@example.com',
    scopes: ['admin:*'],
  },
]

export const SANDBOX_SCOPES: readonly string[] = [
  'read:projects',
  'write:projects',
  'read:users',
  'write:users',
  'read:operations',
  'admin:*',
]
