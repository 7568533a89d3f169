// A worker for one queue of an Evertick server. It needs Node 20.3 or newer, and no packages.
//
//   EVERTICK_URL=http://127.0.0.1:8700 EVERTICK_API_KEY=evt_… node worker.js billing
import { hostname } from "node:os";
import { setTimeout as sleep } from "node:timers/promises";

const SLOTS = 10; // attempts that run at once
const POLL_SECONDS = 20; // how long the server waits for work
const STOP_GRACE_SECONDS = 30; // how long running handlers may take after SIGTERM

interface Attempt {
  token: string;
  run_id: string;
  handler: string;
  payload: unknown;
  attempt: number;
  idempotency_key: string;
  timeout_seconds: number;
}

interface Outcome {
  token: string;
  result: "success" | "failed" | "timed_out";
  error?: string;
  retryable?: boolean;
  output?: unknown;
}

/** Runs an attempt. The signal fires at its timeout, when it was cancelled, or when its lease was lost. */
type Handler = (attempt: Attempt, signal: AbortSignal) => Promise<unknown>;

/** An error that another attempt cannot help. */
class Permanent extends Error {}

const handlers: Record<string, Handler> = {
  async send_invoice(attempt) {
    const { customer } = (attempt.payload ?? {}) as { customer?: string };
    if (!customer) throw new Permanent("the payload names no customer");
    // The key is the same on every attempt: pass it on to services that must not do this twice.
    console.log(`an invoice for ${customer}, once per ${attempt.idempotency_key}`);
    return { invoiced: customer };
  },
  async sleep(attempt, signal) {
    const { seconds } = attempt.payload as { seconds: number };
    console.log(`sleeping, attempt ${attempt.attempt}`);
    await sleep(seconds * 1000, undefined, { signal });
  },
};

const { EVERTICK_URL: url, EVERTICK_API_KEY: key } = process.env;
const queue = process.argv[2];
if (!url || !key || !queue) throw new Error("usage: EVERTICK_URL=… EVERTICK_API_KEY=… node worker.js QUEUE");
const workerId = `${hostname()}-${process.pid}`;

const stopping = new AbortController();
for (const name of ["SIGTERM", "SIGINT"] as const) process.on(name, () => stopping.abort());

const running = new Map<string, { abort: AbortController; done: Promise<void> }>();

async function post<T>(path: string, body: unknown, signal?: AbortSignal): Promise<T> {
  const limit = AbortSignal.timeout((POLL_SECONDS + 10) * 1000);
  const response = await fetch(`${url}/api/v1${path}`, {
    method: "POST",
    headers: { authorization: `Bearer ${key}`, "content-type": "application/json" },
    body: JSON.stringify(body),
    signal: signal ? AbortSignal.any([signal, limit]) : limit,
  });
  const text = await response.text();
  if (!response.ok) throw new Error(`${response.status}: ${text}`);
  return JSON.parse(text) as T;
}

/** Leases attempts until the worker is stopped, and never more than there are free slots. */
async function poll(): Promise<void> {
  let heartbeats: NodeJS.Timeout | undefined;
  while (!stopping.signal.aborted) {
    const room = SLOTS - running.size;
    if (room === 0) {
      await Promise.race([...running.values()].map(({ done }) => done));
      continue;
    }
    try {
      const body = { worker_id: workerId, max: room, wait_seconds: POLL_SECONDS, handlers: Object.keys(handlers) };
      const lease = await post<{ lease_seconds: number; attempts: Attempt[] }>(
        `/queues/${queue}/lease`, body, stopping.signal,
      );
      heartbeats ??= setInterval(() => void heartbeat(), (lease.lease_seconds / 3) * 1000);
      lease.attempts.forEach(start);
    } catch (error) {
      if (stopping.signal.aborted) break;
      console.error("leasing failed:", error);
      await sleep(1000);
    }
  }
  await finish();
  clearInterval(heartbeats);
}

/** Runs an attempt, and records its outcome. Its lease is kept alive until it is recorded. */
function start(attempt: Attempt): void {
  const abort = new AbortController();
  const timeout = AbortSignal.timeout(attempt.timeout_seconds * 1000);
  const run = async (): Promise<void> => {
    let outcome: Outcome;
    try {
      const output = await handlers[attempt.handler](attempt, AbortSignal.any([abort.signal, timeout]));
      outcome = { token: attempt.token, result: "success", output };
    } catch (error) {
      const result = timeout.aborted ? "timed_out" : "failed";
      outcome = { token: attempt.token, result, error: String(error) };
      if (error instanceof Permanent) outcome.retryable = false;
    }
    await record(outcome);
    running.delete(attempt.token);
  };
  running.set(attempt.token, { abort, done: run() });
}

/** Extends the leases of all that runs, and stops what the server says. */
async function heartbeat(): Promise<void> {
  if (running.size === 0) return;
  try {
    const body = { tokens: [...running.keys()] };
    const { cancel } = await post<{ cancel: string[] }>(`/workers/${workerId}/heartbeat`, body);
    for (const token of cancel) running.get(token)?.abort.abort();
  } catch (error) {
    console.error("a heartbeat failed:", error);
  }
}

/** Reports an outcome until the server has it. An outcome that came too late is answered as stale. */
async function record(outcome: Outcome): Promise<void> {
  for (;;) {
    try {
      const body = { worker_id: workerId, outcomes: [outcome] };
      const { stale } = await post<{ stale: string[] }>("/outcomes", body);
      if (stale.length > 0) console.log(`the outcome of ${outcome.token} came too late`);
      return;
    } catch (error) {
      console.error("recording failed, trying again:", error);
      await sleep(1000);
    }
  }
}

/** Waits for running handlers, and aborts those that take longer than the grace. */
async function finish(): Promise<void> {
  const timer = setTimeout(() => running.forEach(({ abort }) => abort.abort()), STOP_GRACE_SECONDS * 1000);
  await Promise.all([...running.values()].map(({ done }) => done));
  clearTimeout(timer);
}

console.log(`worker ${workerId} started on ${queue}`);
await poll();
console.log("worker stopped");
