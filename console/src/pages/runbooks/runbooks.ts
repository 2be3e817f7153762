const files = import.meta.glob<string>('../../../../docs/runbooks/*.md', {
  query: '?raw',
  import: 'default',
  eager: true,
})

/** The runbooks of the documentation by name. They are part of the build, so an operator can read them while nothing answers. */
export const RUNBOOKS: Readonly<Record<string, string>> = Object.fromEntries(
  Object.entries(files).map(([path, text]) => [path.replace(/^.*\/|\.md$/g, ''), text]),
)
