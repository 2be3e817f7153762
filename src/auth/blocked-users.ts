/** Which users are blocked. `unknown`: the list was never read, so no user can be admitted. */
export interface BlockedUsers {
  stateOf(sub: string): 'admitted' | 'blocked' | 'unknown'
}
