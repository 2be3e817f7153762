/** Most ids have 26 characters after their prefix. Those of deliveries are made of two ids, or of an id and a number. */
const ID = /^([a-z]{3})_([0-9a-z]{26})([0-9a-z]{0,26})$/

interface IdParts {
  id: string
  /** The first 26 characters after the prefix, and what follows them. */
  first: string
  second: string
  /** The operator may act: only then the page of the keys is there. */
  mayAct: boolean
}

/** The page for each kind of id. An entry of a timeline (`tml`) is only found on the page of its job. */
const PAGES: Readonly<Record<string, (parts: IdParts) => string | null>> = {
  job: ({ id }) => `/jobs/${id}`,
  cbk: ({ id }) => `/callbacks?id=${id}`,
  rcb: ({ id }) => `/callbacks?refused=${id}`,
  prj: ({ id }) => `/jobs?project_id=${id}`,
  opr: ({ id }) => `/operations?id=${id}`,
  whe: ({ id }) => `/webhooks/${id}`,
  whd: ({ first, second }) => `/webhooks/whe_${first}?event_id=${second}`,
  dlv: ({ first, second }) => `/push?notification=ntf_${first}&device=dev_${second}`,
  ntf: ({ id }) => `/push?notification=${id}`,
  dev: ({ id }) => `/push?device=${id}`,
  svc: ({ id, mayAct }) => (mayAct ? `/keys?id=${id}` : `/jobs?created_by=${id}`),
  key: ({ id, mayAct }) => (mayAct ? `/keys?id=${id}` : null),
  req: ({ id }) => `/audit?request_id=${id}`,
  aud: ({ id }) => `/audit?id=${id}`,
}

/** The page that shows an object, by the prefix of its id; null if there is none. */
export function pageOfId(id: string, { mayAct }: Pick<IdParts, 'mayAct'>): string | null {
  const [, prefix = '', first = '', second = ''] = ID.exec(id) ?? []
  return PAGES[prefix]?.({ id, first, second, mayAct }) ?? null
}
