import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import fc from 'fast-check'
import { hasMoreValues, JsonDepthError, JsonScan, scanJson } from '../../src/core/json/json-scan.ts'
import { JsonSyntaxError } from '../../src/core/json/json-tokens.ts'
import { WHOLE, wantAll, wantFields, wantItems, wantPath } from '../../src/core/json/wanted.ts'
import { MAX_JSON_DEPTH } from '../../src/core/json.ts'
import { scanText } from '../support/json-parts.ts'

const nested = (depth: number) => `${'['.repeat(depth)}${']'.repeat(depth)}`

function isTaken(text: string, step = Number.POSITIVE_INFINITY): boolean {
  try {
    const scan = new JsonScan(text, { maxDepth: 1_000 })
    for (let until = step; !scan.advance(until); until += step);
    return true
  } catch (error) {
    assert.ok(error instanceof JsonSyntaxError, String(error))
    return false
  }
}

function isJson(text: string): boolean {
  try {
    JSON.parse(text)
    return true
  } catch {
    return false
  }
}

/** Texts made of the pieces of JSON, most of them almost valid. */
const pieces = fc
  .array(
    fc.oneof(
      fc.constantFrom(
        '{',
        '}',
        '[',
        ']',
        ',',
        ':',
        '"',
        '\\',
        ' ',
        '\n',
        '\u00a0',
        '\ufeff',
        '\u0000',
        '\u001f',
        '\u007f',
      ),
      fc.constantFrom(
        'true',
        'false',
        'null',
        'tru',
        'NaN',
        'Infinity',
        '"a"',
        '"\\u00e9"',
        '"\\ud800"',
        '"\\u12g4"',
        '"\\x"',
      ),
      fc.constantFrom(
        '0',
        '-',
        '-0',
        '01',
        '1.',
        '.5',
        '1e',
        '1e+',
        '1E-5',
        '-1.50e+400',
        '12345678901234567890',
        '+1',
        '0x1',
      ),
      fc.constantFrom('"k":', '"__proto__":', '{"a":1}', '[1,2]', '[]', '{}', '//', "'a'"),
      fc.string({ unit: 'binary', maxLength: 3 }),
    ),
    { maxLength: 12 },
  )
  .map((all) => all.join(''))

describe('scanning JSON', () => {
  test('the scan accepts the same texts as JSON.parse, all at once or step by step', () => {
    const texts = fc.oneof(
      pieces,
      fc.json({ maxDepth: 5 }),
      fc.json({ maxDepth: 3 }).chain((text) => fc.nat(text.length).map((at) => text.slice(0, at))),
      fc
        .json({ maxDepth: 3 })
        .chain((text) => fc.nat(text.length).map((at) => `${text.slice(0, at)},${text.slice(at)}`)),
      fc.jsonValue().map((value) => JSON.stringify(value, null, 2)),
    )
    fc.assert(
      fc.property(texts, fc.integer({ min: 1, max: 7 }), (text, step) => {
        assert.equal(isTaken(text), isJson(text), JSON.stringify(text))
        assert.equal(isTaken(text, step), isJson(text), JSON.stringify(text))
      }),
      { numRuns: 2_000 },
    )
  })

  test('the scan finds the same parts as JSON.parse, all at once or step by step', () => {
    const value = fc.jsonValue({ maxDepth: 2 })
    const key = fc.constantFrom('a', 'b', 'c', '0', '\\u0061', 'ключ')
    const object = fc
      .array(fc.tuple(key, value), { maxLength: 5 })
      .map((all) => `{ ${all.map(([name, inner]) => `"${name}" : ${JSON.stringify(inner)}`).join(' , ')} }`)
    const wanted = wantAll(wantPath(['a', 'b']), wantPath(['0', '1']), wantFields({ c: wantItems(wantPath(['a'])) }))
    fc.assert(
      fc.property(object, fc.integer({ min: 1, max: 9 }), (text, step) => {
        const scan = new JsonScan(text, { wanted })
        for (let until = step; !scan.advance(until); until += step);
        const parsed = JSON.parse(text) as Record<string, unknown>
        const within = (outer: unknown, name: string) =>
          outer !== null && typeof outer === 'object' && Object.hasOwn(outer, name)
            ? (outer as Record<string, unknown>)[name]
            : undefined
        for (const [path, expected] of [
          [['a'], within(parsed, 'a')],
          [['a', 'b'], within(within(parsed, 'a'), 'b')],
          [['0', '1'], within(within(parsed, '0'), '1')],
          [['c'], within(parsed, 'c')],
        ] as const) {
          assert.deepEqual(scan.root.at(...path)?.parse(), expected, `${path} of ${text}`)
        }
        const items = scan.root.at('c')?.items.map((item) => item.parse()) ?? []
        assert.deepEqual(items, Array.isArray(parsed.c) ? parsed.c : [])
      }),
      { numRuns: 1_000 },
    )
  })

  test('the scan keeps the text of a part as it came', () => {
    const text = ' { "a" : { "n" : [ -0 ,1.50,\n1e400 ] } , "b":"\\u0041" } '
    const root = scanText(text, wantFields({ a: wantFields({ n: wantItems(WHOLE) }), b: WHOLE }))
    assert.equal(root.text, text.trim())
    assert.equal(root.at('a')?.text, '{ "n" : [ -0 ,1.50,\n1e400 ] }')
    assert.deepEqual(
      root.at('a', 'n')?.items.map((item) => item.text),
      ['-0', '1.50', '1e400'],
    )
    assert.equal(root.at('b')?.text, '"\\u0041"')
  })

  test('the scan names the kind of a part, and counts its values and those directly inside', () => {
    const texts = {
      object: '{"a":[1,{}]}',
      array: '[[],0]',
      string: '"x"',
      number: '-1',
      boolean: 'true',
      null: 'null',
    }
    const counts = { object: 4, array: 3, string: 1, number: 1, boolean: 1, null: 1 }
    const members = { object: 1, array: 2, string: 0, number: 0, boolean: 0, null: 0 }
    for (const [kind, text] of Object.entries(texts)) {
      const part = scanText(`{"it":${text},"more":[1]}`, wantPath(['it'])).at('it')
      assert.equal(part?.kind, kind)
      assert.equal(part.values, counts[kind as keyof typeof counts])
      assert.equal(part.members, members[kind as keyof typeof members])
    }
    assert.deepEqual(
      [scanText('{}').members, scanText('[ ]').members, scanText('{"a":1,"a":{"b":2}}').members],
      [0, 0, 2],
    )
    assert.equal(scanText('false').kind, 'boolean')
    assert.equal(scanText('[[1],[2]]').values, 5)
  })

  test('the last of a repeated key counts, with its content', () => {
    const text = '{"a":{"b":1,"c":[1]},"a":{"c":[2,3]}}'
    const root = scanText(text, wantFields({ a: wantFields({ b: WHOLE, c: wantItems(WHOLE) }) }))
    assert.equal(root.at('a', 'b'), undefined)
    assert.deepEqual(
      root.at('a', 'c')?.items.map((item) => item.text),
      ['2', '3'],
    )
  })

  test('an item can be wanted by its index and as one of all', () => {
    const wanted = wantAll(wantItems(wantFields({ role: WHOLE })), wantPath(['1', 'content', 'x']))
    const root = scanText('[{"role":"a"},{"role":"b","content":{"x":1}}]', wanted)
    assert.equal(root.at('1', 'content', 'x')?.text, '1')
    assert.deepEqual(
      root.items.map((item) => item.at('role')?.text),
      ['"a"', '"b"'],
    )
  })

  test('the last items of a long array are reported', () => {
    const root = scanText(`[${Array.from({ length: 45_000 }, (_, n) => n).join(',')}]`, wantItems(WHOLE))
    assert.equal(root.items.length, 10_000)
    assert.equal(root.items.at(-1)?.text, '44999')
    assert.equal(root.values, 45_001)
  })

  test('a part is parsed only while it is small', () => {
    const part = scanText(`["${'x'.repeat(300 * 1024)}"]`)
    assert.equal(part.parse(), undefined)
    assert.equal(scanText('"abc"').parse(4), undefined)
    assert.equal(scanText('"abc"').parse(5), 'abc')
  })

  test('a document may be nested to the limit and not one level deeper', () => {
    assert.doesNotThrow(() => scanText(nested(MAX_JSON_DEPTH)))
    assert.throws(() => scanText(nested(MAX_JSON_DEPTH + 1)), JsonDepthError)
    assert.throws(() => scanText('['.repeat(500_000)), JsonDepthError)
    assert.doesNotThrow(() =>
      scanText(
        `[${Array(1_000)
          .fill(nested(MAX_JSON_DEPTH - 1))
          .join()}]`,
      ),
    )
    assert.doesNotThrow(() => scanText(JSON.stringify(['['.repeat(1_000), `\\"${'{'.repeat(1_000)}`])))
  })

  test('keys that reach for prototypes are seen, however they are spelt', () => {
    const seen = (text: string) => {
      const scan = new JsonScan(text)
      scan.advance(Number.POSITIVE_INFINITY)
      return scan.hasPrototypeKey
    }
    const poison = [
      '{"__proto__":{"admin":true}}',
      '{"\\u005f_proto__":1}',
      '{"__prot\\u006f__":null}',
      '{"\\u005f\\u005f\\u0070\\u0072\\u006f\\u0074\\u006f\\u005f\\u005f":1}',
      '{"constructor":{"prototype":{"admin":true}}}',
      '{"\\u0063onstructor":{"a":1,"prot\\u006ftype":1}}',
    ]
    for (const text of poison)
      for (const inside of [text, `{"deep":[${text}]}`]) assert.equal(seen(inside), true, inside)
    const harmless = [
      '{"constructor":"Ferrari"}',
      '{"prototype":"v2"}',
      '{"constructor":{"name":{"prototype":1}}}',
      '{"constructor":[{"prototype":1}]}',
      '{"constructor":{},"b":{"prototype":1}}',
      '{"proto":1,"toString":2,"hasOwnProperty":3}',
      '{"a":"__proto__","b":["constructor"]}',
    ]
    for (const text of harmless) assert.equal(seen(text), false, text)
  })

  test('more values than a limit are seen without a complete scan; signs inside strings do not count', () => {
    for (const four of ['["a\\\\",1,"\\"",2]', '{"a":[{"b":1}],":,{":2}', '[[],[]]        ']) {
      assert.equal(hasMoreValues(four, 4), false, four)
      assert.equal(hasMoreValues(four, 3), true, four)
    }
    assert.equal(hasMoreValues('[1,2,3,"no end, no end', 4), false)
  })

  test('a long text gives the event loop a turn again and again', async () => {
    let turns = 0
    const ticker = () => {
      turns += 1
      ticking = setImmediate(ticker)
    }
    let ticking = setImmediate(ticker)
    await scanJson(`[${'{},'.repeat(1_000_000)}{}]`)
    clearImmediate(ticking)
    assert.ok(turns >= 10, `${turns} turns`)
  })
})
