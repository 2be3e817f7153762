import { useInfiniteQuery, useMutation, useQuery, useQueryClient } from '@tanstack/preact-query'
import { useRef } from 'preact/hooks'
import { useToast } from '../ui/toasts.tsx'
import { useOperator } from './operator.ts'

export type Query = Record<string, string | number | boolean | null | undefined>

export interface Page<Item> {
  data: Item[]
  has_more: boolean
  next_cursor: string | null
}

/** Reads one resource, and again every `refreshMs` and after each action. */
export function useResource<Body>(
  path: string,
  options: { query?: Query; refreshMs?: number; enabled?: boolean } = {},
) {
  const { api } = useOperator()
  const { query = {}, refreshMs, enabled = true } = options
  return useQuery({
    queryKey: [path, query],
    queryFn: ({ signal }) => api.request<Body>('GET', path, { query, signal }),
    enabled,
    ...(refreshMs === undefined ? {} : { refetchInterval: refreshMs }),
  })
}

/** Reads a list page by page. */
export function useList<Item>(path: string, options: { query?: Query; refreshMs?: number } = {}) {
  const { api } = useOperator()
  const { query = {}, refreshMs } = options
  const found = useInfiniteQuery({
    queryKey: [path, query, 'list'],
    queryFn: ({ pageParam, signal }) =>
      api.request<Page<Item>>('GET', path, { query: { ...query, cursor: pageParam }, signal }),
    initialPageParam: undefined as string | undefined,
    getNextPageParam: (last: Page<Item>) => (last.has_more ? (last.next_cursor ?? undefined) : undefined),
    ...(refreshMs === undefined ? {} : { refetchInterval: refreshMs }),
  })
  return { ...found, items: found.data?.pages.flatMap((page) => page.data) ?? [] }
}

export interface Action {
  method: 'POST' | 'PUT' | 'PATCH' | 'DELETE'
  path: string
  body?: unknown
  headers?: Record<string, string>
}

/**
 * Sends changes. Each action of the operator has one idempotency key, so that a retry changes nothing twice. The operator
 * who repeats an action without an answer repeats it with the same key. Afterwards everything on the screen is read again.
 */
export function useAction<Body = unknown>(done: (answer: Body) => string | null) {
  const { api } = useOperator()
  const toast = useToast()
  const queries = useQueryClient()
  const unanswered = useRef<{ action: string; key: string } | null>(null)
  return useMutation({
    mutationFn: ({ method, path, body, headers = {} }: Action) => {
      const action = JSON.stringify([method, path, body])
      if (unanswered.current?.action !== action) unanswered.current = { action, key: crypto.randomUUID() }
      return api.request<Body>(method, path, {
        ...(body === undefined ? {} : { body }),
        headers: { ...(method === 'POST' ? { 'idempotency-key': unanswered.current.key } : {}), ...headers },
      })
    },
    onSuccess: (answer) => {
      unanswered.current = null
      const message = done(answer)
      if (message !== null) toast({ kind: 'good', message })
    },
    onError: (error) => {
      if (isFinal(error)) unanswered.current = null
      toast({ kind: 'bad', message: error.message })
    },
    onSettled: () => queries.invalidateQueries(),
  })
}

/** The service has answered, and refused the action. Without an answer, or with an error of the service, it may have happened. */
function isFinal(error: Error): boolean {
  return 'status' in error && Number(error.status) >= 400 && Number(error.status) < 500
}
