import fc from 'fast-check'

/** Values that break parsers, stores and terminals: texts first, then any JSON. */
const NASTY_TEXTS = [
  '',
  ' ',
  '\u0000',
  'a\u0000b',
  '\ud800',
  'a\udfffb',
  '\udfff\ud800',
  '\ufffe\uffff',
  '😀',
  '👩‍👩‍👧‍👦',
  'e\u0301\u0301\u0301',
  '\u202eabc\u202c',
  'مرحبا ‏שלום',
  '\ufeffbom',
  '\u2028\u2029',
  '\u0007\u001b[31m',
  '\r\nX-Injected: yes',
  "'; drop table jobs; --",
  '"',
  '\\',
  '%',
  '%00',
  '%c3%28',
  '../../etc/passwd',
  '..',
  '*',
  '{{7*7}}',
  '<script>alert(1)</script>',
  '__proto__',
  'constructor',
  'toString',
  'null',
  'undefined',
  'NaN',
  'Infinity',
  '1e999',
  '-1',
  '0x10',
  '9007199254740993',
  'true',
  '2026-02-30T25:61:00Z',
  'x'.repeat(1_025),
]

/** Numbers as JSON text. Some exceed a double; a document may still contain them. */
const NASTY_NUMBERS = [
  '0',
  '-0',
  '1e999',
  '-1e999',
  '1e-400',
  '1.5',
  '-1',
  '101',
  '2147483648',
  '9007199254740993',
  '123456789012345678901234567890',
  '0.1000000000000000055511151231257827',
]

const rawJson = (JSON as unknown as { rawJSON(text: string): unknown }).rawJSON

/** Any sequence of UTF-16 units, including unpaired surrogates. */
const anyUnits = fc
  .array(fc.integer({ min: 0, max: 0xffff }), { maxLength: 12 })
  .map((units) => String.fromCharCode(...units))

export const hostileText: fc.Arbitrary<string> = fc.oneof(
  { weight: 4, arbitrary: fc.constantFrom(...NASTY_TEXTS) },
  { weight: 2, arbitrary: anyUnits },
  { weight: 1, arbitrary: fc.string({ unit: 'binary', maxLength: 40 }) },
)

export const hostileNumber: fc.Arbitrary<unknown> = fc.constantFrom(...NASTY_NUMBERS).map(rawJson)

/** Deeply nested but readable documents. Levels beyond the limit are generated as text below. */
const nested = fc.integer({ min: 1, max: 120 }).map((levels) => {
  let value: unknown = 'deep'
  for (let i = 0; i < levels; i++) value = i % 2 ? [value] : { a: value }
  return value
})

export const hostileJson: fc.Arbitrary<unknown> = fc.oneof(
  { weight: 3, arbitrary: hostileText },
  { weight: 2, arbitrary: hostileNumber },
  { weight: 2, arbitrary: fc.constantFrom<unknown>(null, true, false, [], {}, [null], [[]], { a: { b: [] } }) },
  { weight: 1, arbitrary: fc.jsonValue({ maxDepth: 3 }) },
  { weight: 1, arbitrary: fc.dictionary(hostileText, fc.constantFrom(1, 'x', null), { maxKeys: 3 }) },
  { weight: 1, arbitrary: nested },
)

/** Bodies that are no document, or one that should not be trusted. */
export const hostileBody: fc.Arbitrary<string> = fc.oneof(
  fc.constantFrom(
    '',
    ' ',
    '\u0000',
    '{',
    '{"',
    'nul',
    '{"a":1,}',
    '{"a":1}{"b":2}',
    "{'a':1}",
    '\ufeff{}',
    '{"name":"a","name":"b"}',
    '{"__proto__":{"admin":true}}',
    '{"constructor":{"prototype":{"admin":true}}}',
    '{"name":"\\ud800"}',
    '{"name":"\\u0000"}',
    '['.repeat(200),
    `${'['.repeat(5_000)}${']'.repeat(5_000)}`,
    `{"metadata":${'{"a":'.repeat(150)}1${'}'.repeat(150)}}`,
    'a=1&b=2',
    '<xml/>',
  ),
  hostileText,
)

export const contentType: fc.Arbitrary<string | undefined> = fc.constantFrom(
  undefined,
  'application/json',
  'application/json; charset=utf-16',
  'application/json;charset=utf-8;charset=utf-8',
  'application/vnd.api+json',
  'APPLICATION/JSON',
  'text/plain',
  'text/plain;charset=UTF-8',
  'application/x-www-form-urlencoded',
  'multipart/form-data; boundary=x',
  'application/octet-stream',
  'json',
  '',
  ';',
  '*/*',
)

/** What a header can carry: visible characters, blanks and everything above ASCII. */
export const headerText: fc.Arbitrary<string> = fc.oneof(
  fc.constantFrom(
    '',
    ' ',
    '*',
    '""',
    '"1"',
    'W/"1"',
    '"1", "2"',
    '"99999999999999999999"',
    '"unclosed',
    ',,,',
    '-1',
    '0',
    '1e3',
    '007',
    '999999999999999',
    '1000000000000000',
    'x'.repeat(300),
    '\u00ff\u00fe',
    'a, a',
    '\t',
  ),
  fc
    .array(fc.constantFrom(...visible()), { maxLength: 20 })
    .map((characters) => characters.join(''))
    .map((text) => text.trim()),
)

function visible(): string[] {
  return Array.from({ length: 256 }, (_, code) => String.fromCharCode(code)).filter((char) =>
    /[\x20-\x7e\x80-\xff]/.test(char),
  )
}
