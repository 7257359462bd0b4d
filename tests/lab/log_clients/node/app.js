'use strict';
// A service that logs. What its modes do and what it prints stands in ../__init__.py, once for all clients.

const { openSync, writeSync } = require('node:fs');
const { parseArgs } = require('node:util');

const STEP_MS = 20;
const DEFAULTS = { seconds: 10, rate: 10, size: 200, every: 1, end: 'drain', errors: 'count', status: '' };

function fail(message) {
  process.stderr.write(`${message}\n`);
  process.exit(2);
}

function readOptions() {
  const words = { mode: { type: 'string' } };
  for (const name of Object.keys(DEFAULTS)) words[name] = { type: 'string' };
  const options = { ...DEFAULTS };
  for (const [name, value] of Object.entries(parseArgs({ options: words }).values)) {
    options[name] = typeof DEFAULTS[name] === 'number' ? Number(value) : value;
    if (Number.isNaN(options[name])) fail(`--${name}: ${value} is not a number`);
  }
  return options;
}

const options = readOptions();
const state = { emitted: 0, errors: 0 };
/** One of its own for each entry, as real ones are: a shared string would weigh nothing while it waits. */
const text = () => Buffer.alloc(options.size, 'x').toString('latin1');
let waits = []; // of requests since the last line, milliseconds
const status = options.status ? openSync(options.status, 'a') : 2;

function percentile95() {
  const sorted = waits.sort((a, b) => a - b);
  waits = [];
  return sorted.length ? sorted[Math.ceil(sorted.length * 0.95) - 1] : null;
}

/** One line, one write; it is left out when nobody reads. */
function say(more) {
  const { heapUsed, rss } = process.memoryUsage();
  const { user, system } = process.cpuUsage();
  const record = {
    at: Date.now() / 1000, ...state, heap_bytes: heapUsed, rss_bytes: rss,
    cpu_seconds: (user + system) / 1e6, p95_ms: percentile95(), ...more,
  };
  try {
    writeSync(status, `${JSON.stringify(record)}\n`);
  } catch (error) {
    if (error.code !== 'EAGAIN') throw error;
  }
}

/** Options that send a client of Cloud Logging to the lab's server, without credentials and metadata server. */
function toServer() {
  const { credentials } = require('@grpc/grpc-js');
  const [host, port] = process.env.LAB_CLOUD_LOGGING.split(':');
  return {
    projectId: process.env.GOOGLE_CLOUD_PROJECT,
    apiEndpoint: host,
    port: Number(port),
    sslCreds: credentials.createInsecure(),
    resource: { type: 'global', labels: {} },
    serviceContext: { service: 'lab-log-client' },
  };
}

const countErrors = (emitter) => {
  if (options.errors === 'count') emitter.on('error', () => { state.errors += 1; });
  return emitter;
};

function winston(given) {
  const { createLogger } = require('winston');
  const { LoggingWinston } = require('@google-cloud/logging-winston');
  const logger = countErrors(createLogger({ transports: [new LoggingWinston(given)] }));
  return (seq) => logger.info(text(), { seq, timestamp: new Date() });
}

function bunyan() {
  const { LoggingBunyan } = require('@google-cloud/logging-bunyan');
  const stream = countErrors(new LoggingBunyan(toServer()).stream('info').stream);
  const logger = require('bunyan').createLogger({ name: 'lab-app', streams: [{ level: 'info', type: 'raw', stream }] });
  return (seq) => logger.info({ seq }, text());
}

function direct() {
  const { Logging } = require('@google-cloud/logging');
  const { resource, ...given } = toServer();
  const log = new Logging(given).log('lab-app');
  return (seq) => {
    const sent = log.write(log.entry({ resource, timestamp: new Date() }, { seq, message: text() }));
    if (options.errors === 'count') sent.catch(() => { state.errors += 1; });
  };
}

function pino(destination) {
  const logger = require('pino')({ level: 'info' }, destination(require('pino')));
  return (seq) => logger.info({ seq }, text());
}

const MODES = {
  cloud: () => winston(toServer()),
  redirect: () => winston({ projectId: 'lab', redirectToStdout: true, useMessageField: false }),
  stdout: () => (seq) => process.stdout.write(`${JSON.stringify({ severity: 'INFO', seq, message: text() })}\n`),
  queue: () => pino(({ transport }) => transport({ target: 'pino/file', options: { destination: 1 } })),
  'pino-async': () => pino(({ destination }) => destination({ dest: 1, sync: false })),
  'pino-sync': () => pino(({ destination }) => destination({ dest: 1, sync: true })),
  bunyan,
  direct,
};

function end() {
  if (options.end === 'exit') process.exit(0);
  if (options.end === 'crash') throw new Error('the end was to be a crash');
}

if (!Object.hasOwn(MODES, options.mode)) fail(`--mode: ${options.mode}; allowed: ${Object.keys(MODES).join(', ')}`);
const emit = MODES[options.mode]();
const began = performance.now();
let told = 0;
say({ options });
let due = STEP_MS;

/** Requests that are due now, one after the other; those that come meanwhile wait until others had their turn. */
function work() {
  const now = performance.now() - began;
  for (; due <= now; due += STEP_MS) {
    const count = Math.floor((Math.min(due / 1000, options.seconds)) * options.rate);
    while (state.emitted < count) {
      state.emitted += 1;
      emit(state.emitted);
    }
    waits.push(performance.now() - began - due);
  }
  const seconds = (due - STEP_MS) / 1000;
  if (seconds >= options.seconds) {
    say({ done: 1 });
    end();
    return;
  }
  if (seconds >= told + options.every) {
    told = seconds;
    say();
  }
  setTimeout(work, Math.max(1, due - (performance.now() - began)));
}
work();
