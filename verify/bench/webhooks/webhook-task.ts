/** How many endpoints there are, each at an address of its own. Each gets every event. */
export const ENDPOINTS = 10

/** The addresses of the receivers, sent by their process once they listen. */
export interface ReceiverAddresses {
  urls: string[]
  ca: string
}

/** The work of one round: each of these events to each endpoint. */
export interface WebhookTask {
  way: 'machine' | 'raw'
  events: number
  /** Different in each round. */
  round: string
}

export interface WebhooksDone {
  elapsedMs: number
  /** Processor time of the sending process; other load on the machine hardly changes it. */
  cpuMs: number
}
