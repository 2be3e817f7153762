import type { ApiClient } from '@project-api/client'
import { createContext } from 'preact'
import { useContext } from 'preact/hooks'
import type { Operator } from '../session/session.ts'
import type { ConsoleSettings } from '../session/settings.ts'

export interface OperatorContextValue {
  api: ApiClient
  operator: Operator
  settings: ConsoleSettings
  signOut: () => void
}

export const OperatorContext = createContext<OperatorContextValue | null>(null)

/** The signed-in operator and the client with their credentials. */
export function useOperator(): OperatorContextValue {
  const value = useContext(OperatorContext)
  if (value === null) throw new Error('No operator is signed in')
  return value
}
