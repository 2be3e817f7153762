import { useLocation, useSearch } from 'wouter-preact'

/** Filters kept in the address, so that a view can be shared and the browser's Back button works. */
export function useUrlFilters(names: readonly string[]) {
  const search = new URLSearchParams(useSearch())
  const [path, navigate] = useLocation()
  const filters: Record<string, string> = {}
  for (const name of names) {
    const value = search.get(name)
    if (value) filters[name] = value
  }
  const hrefWith = (changes: Record<string, string | null>): string => {
    const next = new URLSearchParams(filters)
    for (const [name, value] of Object.entries(changes)) {
      if (value) next.set(name, value)
      else next.delete(name)
    }
    return next.size > 0 ? `${path}?${next}` : path
  }
  return { filters, hrefWith, set: (changes: Record<string, string | null>) => navigate(hrefWith(changes)) }
}
