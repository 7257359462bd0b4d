'use strict';
// A small service on pg and its Pool: one event loop, so whatever computes stops everything.
// What its modes do and what it prints stands in ../__init__.py, once for all clients.

const { writeSync } = require('node:fs');
const { createServer } = require('node:http');
const { setTimeout: pause } = require('node:timers/promises');
const { parseArgs } = require('node:util');
const { Client, Pool } = require('pg');
const { parse, toClientConfig } = require('pg-connection-string');
const Cursor = require('pg-cursor');
const postgres = require('postgres');

const ROW = 'SELECT id, bucket, payload FROM lab_rows WHERE id = $1';
const ROWS = 'SELECT id, bucket, payload FROM lab_rows WHERE id <= $1';
const IDS = 'SELECT id FROM lab_rows WHERE id BETWEEN $1 AND $1 + 99';
const SCAN = 'SELECT count(*) FROM lab_rows WHERE bucket = $1';
const SLEEP = 'SELECT pg_sleep($1)';
const CHANGE = 'UPDATE lab_rows SET changed = changed + 1 WHERE id = $1 RETURNING id';
const RETRY_MS = 100;
const DEFAULTS = {
  seconds: 5, workers: 2, pool: 0, name: 'lab-app', every: 2, pause_ms: 5, ids: 1000, rows: 20000,
  sleep_ms: 200, row: 1, hold_ms: 200, row_sleep_ms: 5, metrics_port: 0,
};

function fail(message) {
  process.stderr.write(`${message}\n`);
  process.exit(2);
}

function readOptions() {
  const words = { mode: { type: 'string' } };
  for (const name of Object.keys(DEFAULTS)) words[name.replaceAll('_', '-')] = { type: 'string' };
  const given = parseArgs({ options: words }).values;
  const options = { ...DEFAULTS };
  for (const [word, value] of Object.entries(given)) {
    const name = word.replaceAll('-', '_');
    options[name] = typeof DEFAULTS[name] === 'number' ? Number(value) : value;
    if (Number.isNaN(options[name])) fail(`--${word}: ${value} is not a number`);
  }
  return options;
}

const options = readOptions();
const { mode } = options;
const pooled = !['connect', 'shared'].includes(mode);
const state = { units: 0, failures: 0, waiting: 0, held: 0, error: null, created: 0 };
let samples = { unit: [], acquire: [], query: [] };

/** The nearest rank, null without samples. */
function percentile(values, share) {
  if (values.length === 0) return null;
  const sorted = Float64Array.from(values).sort();
  return Math.round(sorted[Math.round(share * (values.length - 1))] * 1e3) / 1e3;
}

/** One line, one write. */
function say(more) {
  const { unit, acquire, query } = samples;
  samples = { unit: [], acquire: [], query: [] };
  const record = {
    load: mode, client: 'node', units: state.units, failures: state.failures,
    p50_ms: percentile(unit, 0.5), p99_ms: percentile(unit, 0.99),
    acquire_p50_ms: percentile(acquire, 0.5), acquire_p99_ms: percentile(acquire, 0.99),
    query_p50_ms: percentile(query, 0.5), error: state.error,
    pool: pooled ? {
      size: pool.totalCount, max: pool.options.max, checked_out: state.held, waiting: state.waiting,
    } : null,
    ...more,
  };
  state.error = null;
  writeSync(1, `${JSON.stringify(record)}\n`);
}

async function acquire() {
  if (pooled) return pool.connect();
  const client = new Client(config);
  client.on('error', () => {}); // the query that finds it broken tells
  await client.connect();
  return client;
}

/** Hand a connection to use, then give it back, or close it: also one with an error, whose transaction is open. */
async function connection(use) {
  const began = performance.now();
  state.waiting += 1;
  let client;
  try {
    client = await acquire();
  } finally {
    state.waiting -= 1;
  }
  samples.acquire.push(performance.now() - began);
  state.held += 1;
  let error;
  try {
    await use(client);
  } catch (thrown) {
    error = thrown;
  }
  state.held -= 1;
  if (pooled) client.release(error);
  else await client.end();
  if (error) throw error;
}

function expect(count, expected) { // fewer: the table is smaller than the options say
  if (count !== expected) throw Object.assign(new Error(), { code: 'ShortAnswer' });
}

async function fetch(client, text, value, expected = 1) {
  const began = performance.now();
  const { rows } = await client.query(text, [value]);
  samples.query.push(performance.now() - began);
  expect(rows.length, expected);
  return rows;
}

function turn(times) {
  let value = 88675123;
  for (let number = 0; number < times; number += 1) {
    value ^= value << 13;
    value ^= value >>> 17;
    value ^= value << 5;
  }
  return value;
}

/** Turns of a millisecond on a free core: the fastest of many short tries. */
function calibrate() {
  const turns = 200_000;
  let fastest = Infinity;
  for (let number = 0; number < 50; number += 1) {
    const began = performance.now();
    turn(turns);
    fastest = Math.min(fastest, performance.now() - began);
  }
  return turns / fastest;
}

const turnsPerMs = calibrate();
const anyOf = (count) => 1 + Math.floor(Math.random() * count);
const anyRow = (client) => fetch(client, ROW, anyOf(options.ids));

const inTransaction = (inner) => async (client) => {
  await client.query('BEGIN');
  await inner(client);
  await client.query('COMMIT');
};

async function stream(client) {
  const began = performance.now();
  const cursor = client.query(new Cursor(ROWS, [options.rows]));
  let count = 0;
  for (let rows = await cursor.read(100); rows.length > 0; rows = await cursor.read(100)) {
    count += rows.length;
    if (rows.length === 100) await pause(options.row_sleep_ms);
  }
  await cursor.close();
  samples.query.push(performance.now() - began);
  expect(count, options.rows);
}

const UNITS = {
  small: anyRow,
  connect: anyRow,
  bulk: async (client) => (await fetch(client, ROWS, options.rows, options.rows))
    .reduce((length, row) => length + row.payload.length, 0),
  slow: async (client) => {
    await fetch(client, SLEEP, options.sleep_ms / 1e3);
    await anyRow(client);
  },
  scan: (client) => fetch(client, SCAN, anyOf(1000) - 1),
  write: inTransaction((client) => fetch(client, CHANGE, options.row)),
  'write-own': (client, number) => fetch(client, CHANGE, number + 1),
  'n+1': async (client) => {
    for (const { id } of await fetch(client, IDS, anyOf(options.ids - 99), 100)) await fetch(client, ROW, id);
  },
  'hold-sleep': inTransaction(async (client) => {
    await anyRow(client);
    await pause(options.hold_ms);
  }),
  'hold-cpu': inTransaction(async (client) => {
    await anyRow(client);
    turn(options.hold_ms * turnsPerMs);
  }),
  stream,
};

async function share() {
  const began = performance.now();
  const { length } = await shared.unsafe(ROW, [anyOf(options.ids)], { prepare: true });
  samples.query.push(performance.now() - began);
  expect(length, 1);
}

async function work(number) {
  for (;;) {
    const began = performance.now();
    // Requests of many people: with pauses all alike those who share a connection fall into step, one after the other.
    let rest = options.pause_ms * (mode === 'shared' ? 2 * Math.random() : 1);
    try {
      if (mode === 'shared') await share();
      else await connection((client) => UNITS[mode](client, number));
      state.units += 1;
      samples.unit.push(performance.now() - began);
    } catch (error) {
      state.failures += 1;
      state.error = error.code ?? error.name; // a message may tell more
      rest = Math.max(rest, RETRY_MS);
    }
    await pause(rest);
  }
}

/** The names of node-postgres-prometheus-exporter, whatever is asked for. */
function page(_, answer) {
  const series = {
    connections_created_total: state.created, size: pool.totalCount, max: pool.options.max,
    active_connections: pool.totalCount - pool.idleCount, waiting_connections: pool.waitingCount,
    idle_connections: pool.idleCount,
  };
  answer.setHeader('Content-Type', 'text/plain; version=0.0.4');
  answer.end(Object.entries(series).map(([name, value]) => {
    const kind = name.endsWith('_total') ? 'counter' : 'gauge';
    return `# TYPE pg_pool_${name} ${kind}\npg_pool_${name} ${value}\n`;
  }).join(''));
}

if (!UNITS[mode] && mode !== 'shared') fail(`--mode: ${mode} is none; allowed: ${Object.keys(UNITS).join(', ')}, shared`);
if (!process.env.LAB_DSN) fail('LAB_DSN is not set; it must be the URI of a PostgreSQL database');
const parsed = parse(process.env.LAB_DSN, { useLibpqCompat: true }); // sslmode as in the other clients
const config = { ...toClientConfig(parsed), application_name: options.name };
const perConnection = mode.startsWith('hold-') ? 2 : 1;
const pool = new Pool({ ...config, max: options.pool || Math.max(1, Math.floor(options.workers / perConnection)) });
const shared = mode === 'shared' ? postgres({
  host: config.host, port: config.port, user: config.user, password: config.password, database: config.database,
  max: 1, ssl: false, connection: { application_name: options.name },
}) : null;
pool.on('error', () => {}); // without a listener a lost connection ends the process, also one that is checked out
pool.on('connect', (client) => {
  state.created += 1;
  client.on('error', () => {});
});

function end() {
  say({ done: 1 });
  process.exit(0); // a query that waits for a lock would keep the pool open
}

const { mode: _mode, ...shown } = options;
say({ options: shown });
process.on('SIGTERM', end);
setTimeout(end, options.seconds * 1e3);
setInterval(say, options.every * 1e3);
if (options.metrics_port) createServer(page).listen(options.metrics_port, '127.0.0.1');
for (let number = 0; number < options.workers; number += 1) work(number);
