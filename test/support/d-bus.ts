import type { Socket } from 'node:net'

/** In the order of their types: text, unsigned number, boolean, list of texts. */
export type BusValue = string | number | boolean | readonly string[]

export interface BusCall {
  member: string
  /** Reads the arguments in their order. */
  read: BusReader
}

/** The values of the answer; undefined if there is no such method. */
export type BusAnswer = readonly BusValue[] | undefined

export interface BusSignal {
  sender: string
  path: string
  interface: string
  member: string
  values: readonly BusValue[]
}

const MESSAGE = { call: 1, answer: 2, error: 3, signal: 4 } as const
const FIELD = { path: 1, interface: 2, member: 3, error: 4, answerTo: 5, sender: 7, signature: 8 } as const
const START_BYTES = 16

/** A header field: its code, its type and its value. */
type Field = readonly [code: number, type: 'o' | 's' | 'u' | 'g', value: string | number]

/** The bus end of one D-Bus connection: signs the program in, then answers its method calls. */
export class BusConnection {
  readonly #socket: Socket
  readonly #answer: (call: BusCall) => BusAnswer
  #unread: Buffer = Buffer.alloc(0)
  #isSignedIn = false
  #serial = 0

  constructor(socket: Socket, answer: (call: BusCall) => BusAnswer) {
    this.#socket = socket
    this.#answer = answer
    socket.on('data', (chunk: Buffer) => {
      this.#unread = Buffer.concat([this.#unread, chunk])
      while (this.#isSignedIn ? this.#readMessage() : this.#readLine());
    })
  }

  signal({ sender, path, interface: name, member, values }: BusSignal): void {
    const fields: Field[] = [
      [FIELD.path, 'o', path],
      [FIELD.interface, 's', name],
      [FIELD.member, 's', member],
      [FIELD.sender, 's', sender],
    ]
    this.#send(MESSAGE.signal, fields, values)
  }

  #readLine(): boolean {
    const end = this.#unread.indexOf('\r\n')
    if (end === -1) return false
    const line = this.#take(end + 2).toString('latin1')
    if (line.startsWith('BEGIN')) this.#isSignedIn = true
    else if (line.includes('AUTH EXTERNAL')) this.#socket.write(`OK ${'0'.repeat(32)}\r\n`)
    else this.#socket.write(line.includes('AUTH') ? 'REJECTED EXTERNAL\r\n' : 'ERROR\r\n')
    return true
  }

  #readMessage(): boolean {
    if (this.#unread.length < START_BYTES) return false
    const fieldsEnd = START_BYTES + this.#unread.readUInt32LE(12)
    const bodyAt = padded(fieldsEnd, 8)
    const bytes = bodyAt + this.#unread.readUInt32LE(4)
    if (this.#unread.length < bytes) return false
    const message = this.#take(bytes)
    if (message[1] !== MESSAGE.call) return true
    const member = memberOf(message.subarray(0, fieldsEnd))
    const values = this.#answer({ member, read: new BusReader(message, bodyAt) })
    const answerTo: Field = [FIELD.answerTo, 'u', message.readUInt32LE(8)]
    if (values) this.#send(MESSAGE.answer, [answerTo], values)
    else this.#send(MESSAGE.error, [answerTo, [FIELD.error, 's', 'org.freedesktop.DBus.Error.UnknownMethod']], [])
    return true
  }

  #take(bytes: number): Buffer {
    const taken = this.#unread.subarray(0, bytes)
    this.#unread = this.#unread.subarray(bytes)
    return taken
  }

  #send(type: number, fields: readonly Field[], values: readonly BusValue[]): void {
    const body = new BusWriter(0)
    for (const value of values) body.value(value)
    const header = new BusWriter(START_BYTES)
    for (const field of fields) header.field(field)
    if (values.length > 0) header.field([FIELD.signature, 'g', values.map(typeOf).join('')])
    const { bytes } = header
    const start = new BusWriter(0)
    start.raw(Buffer.from(['l'.charCodeAt(0), type, 0, 1]))
    for (const number of [body.bytes.length, ++this.#serial, bytes.length]) start.value(number)
    header.align(8)
    this.#socket.write(Buffer.concat([start.bytes, header.bytes, body.bytes]))
  }
}

function memberOf(header: Buffer): string {
  const read = new BusReader(header, START_BYTES)
  while (read.at < header.length) {
    const { code, value } = read.field()
    if (code === FIELD.member) return value
  }
  return ''
}

function typeOf(value: BusValue): string {
  if (typeof value === 'object') return 'as'
  return { string: 's', number: 'u', boolean: 'b' }[typeof value as 'string']
}

const padded = (at: number, bytes: number) => Math.ceil(at / bytes) * bytes

export class BusReader {
  readonly #from: Buffer
  at: number

  constructor(from: Buffer, at: number) {
    this.#from = from
    this.at = at
  }

  number(): number {
    this.at = padded(this.at, 4)
    return this.#bytes(4).readUInt32LE()
  }

  text(): string {
    return this.#text(this.number())
  }

  field(): { code: number; value: string } {
    this.at = padded(this.at, 8)
    const [code = 0, , type = 0] = this.#bytes(4)
    if (type === 'u'.charCodeAt(0)) return { code, value: String(this.number()) }
    return { code, value: type === 'g'.charCodeAt(0) ? this.#text(this.#bytes(1).readUInt8()) : this.text() }
  }

  #text(bytes: number): string {
    return this.#bytes(bytes + 1).toString('utf8', 0, bytes)
  }

  #bytes(count: number): Buffer {
    this.at += count
    return this.#from.subarray(this.at - count, this.at)
  }
}

/** Writes values. Their place in the message decides their padding. */
class BusWriter {
  readonly #from: number
  bytes: Buffer = Buffer.alloc(0)

  constructor(from: number) {
    this.#from = from
  }

  align(bytes: number): void {
    const at = this.#from + this.bytes.length
    this.raw(Buffer.alloc(padded(at, bytes) - at))
  }

  raw(bytes: Buffer): void {
    this.bytes = Buffer.concat([this.bytes, bytes])
  }

  value(value: BusValue): void {
    if (typeof value === 'object') return this.#texts(value)
    this.align(4)
    const number = Buffer.alloc(4)
    number.writeUInt32LE(typeof value === 'string' ? Buffer.byteLength(value) : Number(value))
    this.raw(number)
    if (typeof value === 'string') this.raw(Buffer.from(`${value}\0`))
  }

  field([code, type, value]: Field): void {
    this.align(8)
    this.raw(Buffer.from([code, 1, type.charCodeAt(0), 0]))
    if (type === 'g') this.raw(Buffer.from(`${String.fromCharCode(String(value).length)}${value}\0`))
    else this.value(value)
  }

  #texts(values: readonly string[]): void {
    this.align(4)
    const list = new BusWriter(this.#from + this.bytes.length + 4)
    for (const value of values) list.value(value)
    this.value(list.bytes.length)
    this.raw(list.bytes)
  }
}
