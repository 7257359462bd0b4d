'use strict';
/*
 * Tells the stallscope agent what waits inside this Node process, where nobody sees it from outside: log entries on
 * their way to Cloud Logging, bytes that a slow reader of standard output leaves in the heap, requests, the pg pool.
 *
 *     NODE_OPTIONS=--require=/path/stallscope-hook.js        no change of the app; CommonJS and ES modules
 *
 * STALLSCOPE_HOOK is udp:127.0.0.1:9769 (the default; loopback only), file:/path (rewritten as /path.PID) or off. Node
 * has no unix datagram sockets: unix: sends nothing. STALLSCOPE_HOOK_NAME names the process. NODE_DEBUG=stallscope-hook
 * tells on standard error what was found and what went wrong.
 *
 * What is looked at every two seconds, and what is done besides:
 *   stdout, stderr         writableLength, once the app has opened them (this file never opens them)
 *   @google-cloud/logging  Log.write(): entries handed over and not yet answered; a call that fails has lost its entries,
 *                          and is told as refused as well when that was for want of quota (429)
 *   logging-winston        the same, and what waits before it in winston's logger and transport
 *   winston                what waits in loggers with other transports; each entry is counted
 *   logging-bunyan         the stream's length; each entry is counted
 *   pino                   bytes in sonic-boom's or thread-stream's buffer; what waits in pino's worker is not seen
 *   http, https            requests between start and end, by Node's diagnostics channels; http2 is not seen. That the
 *                          first one came or the last one ended is told at once
 *   pg                     the pool's numbers; connect() is timed
 * Ages: an entry in flight is as old as its emission. What waits before it is dated by the counts at each look: right
 * in a steady flow, off by two seconds at most after a burst. Entries that winston leaves behind in its transport after
 * a refusal, while later ones pass them by, are known by the one at their head, which stays the same.
 *
 * Node 18, 20, 22, 24; winston 3, logging-winston 5 to 7, logging-bunyan 5 and 6, pino 8 to 10, pg 8 (docs/log-proofs.md). A package is known by its
 * name: one that a bundler put into the app's own file is not found, nor one whose source a module loader hands out
 * (module.register() with a load() for CommonJS). Nothing is done in worker threads; each process of a cluster reports
 * for itself. A patched method does what it did before, but the promise of Log.write() and of connect() settles one
 * microtask later, and a stack shows a line of this file for each file that is being loaded. Nothing here keeps the
 * process alive, and what fails here fails silently. The last message is sent on 'exit': after process.exit() and a
 * crash too, but not when a signal kills the process. While synchronous output blocks the process (pino's default,
 * before a full pipe) nothing is sent.
 *
 * Longer than a module of the agent may be: users copy one file.
 */

const channels = require('node:diagnostics_channel');
const dgram = require('node:dgram');
const { EventEmitter } = require('node:events');
const fs = require('node:fs');
const Module = require('node:module');
const path = require('node:path');
const { debuglog } = require('node:util');
const { isMainThread } = require('node:worker_threads');

const LOOK_MS = 2000;
const QUIET_SECONDS = 10; // between two messages while nothing changes and nothing waits
const MOST_BYTES = 8192; // of a message
const AT_ONCE = 10; // that the first request came or the last one ended is told at once, this often in a row,
const SOON_MS = 500; // and then twice a second
const MOST_POOLS = 16;
const MOST_OBJECTS = 1024; // loggers or streams of a kind that are looked at
const MOST_TICKETS = 1000; // calls in flight whose age is known; further ones are counted only
const MOST_MARKS = 128;
const RESOURCE_EXHAUSTED = 8; // of gRPC; HTTP calls it 429
const MARKER = Symbol.for('stallscope.hook');
const debug = debuglog('stallscope-hook');
/** Seconds; bound now, because the app's tests may replace the clock. */
const now = ((clock) => () => clock() / 1000)(performance.now.bind(performance));
const round = (seconds) => Math.round(seconds * 1000) / 1000;
const age = (since, time) => (since < Infinity ? { oldest_seconds: Math.max(0, round(time - since)) } : {});

function safely(work, ...given) {
  try {
    return work(...given);
  } catch (error) {
    debug('%s', error);
    return undefined;
  }
}

/** How many had come at each look, to tell when the n-th came: `first` and `last` are the looks that saw a count. */
class Marks {
  constructor() {
    this.list = [{ count: 0, first: now(), last: now() }];
  }

  /** When the n-th of `count` came, as if evenly between two looks; `count` is that at `time`. */
  when(n, count, time) {
    const { list } = this;
    let [before, place] = [list[0], 1];
    while (place < list.length && list[place].count < n) before = list[place++];
    const after = place < list.length ? list[place] : { count, first: time };
    if (after.count <= before.count) return time;
    return before.last + (Math.max(0, n - before.count) / (after.count - before.count)) * (after.first - before.last);
  }

  /** A look: this many wait behind those that have gone. When the first of them came, Infinity if none waits. */
  look(waiting, gone, time) {
    const { list } = this;
    const newest = list[list.length - 1];
    const count = gone + waiting;
    const since = waiting > 0 ? this.when(gone + 1, count, time) : Infinity;
    if (count > newest.count) list.push({ count, first: time, last: time });
    else if (count === newest.count) newest.last = time;
    while (list.length > 1 && list[1].count <= gone) list.shift();
    if (list.length > MOST_MARKS) this.list = list.filter((_, place) => place % 2 === 0 || place === list.length - 1);
    return since;
  }
}

/** Calls of Log.write() that are not answered yet, and the queue that ends in them. */
class Calls {
  constructor(queue, kind, within = false) {
    this.name = { queue, kind };
    this.within = within; // what is in flight is still in the stream's length
    this.totals = { arrived: 0, drained: 0, dropped: 0, errors: 0, refused: 0 };
    this.waiting = 0;
    this.most = 0;
    this.tickets = new Set();
  }

  enter(entries, since) {
    const ticket = { entries, since };
    this.waiting += entries;
    this.totals.arrived += entries;
    if (this.tickets.size < MOST_TICKETS) this.tickets.add(ticket);
    return ticket;
  }

  leave(ticket, error) {
    this.tickets.delete(ticket);
    this.waiting -= ticket.entries;
    this.totals[error ? 'dropped' : 'drained'] += ticket.entries;
    if (error) this.totals.errors += 1;
    if (error && (error.code === RESOURCE_EXHAUSTED || error.code === 429)) this.totals.refused += 1;
  }

  /** With `held` entries in streams before it, the first since `since`. */
  row(held, since, time) {
    for (const ticket of this.tickets) since = Math.min(since, ticket.since);
    const before = this.within ? Math.max(0, held - this.waiting) : held;
    const row = { ...this.name, entries: before + this.waiting, ...age(since, time) };
    if (!this.totals.arrived) return row;
    this.most = Math.max(this.most, this.totals.arrived + before); // what a level filters out is held and never arrives
    return { ...row, ...this.totals, arrived: this.most };
  }
}

const direct = new Calls('google-cloud-logging', 'google-cloud-logging');
const byWinston = new Calls('logging-winston', 'logging-winston');
const byBunyan = new Calls('logging-bunyan', 'bunyan', true);
const elsewhere = new Calls('winston', 'winston'); // loggers of winston with other transports: no calls
/** Which of them a Log belongs to; `direct` unless a transport has claimed it. */
const owners = new WeakMap();
/** When the entry was emitted that a transport is handing to its Log at this moment. */
let emitted = null;

const ours = new WeakSet(); // functions that were put around others
const states = new WeakMap(); // what is known of a logger, stream or pool
const followed = new Map(); // their states by kind
const heads = new WeakMap(); // the entry that headed a transport's buffer at the last look, and since when it waits
const opened = new Map(); // standard streams that the app has opened
const requests = { seen: false, open: 0, turn() {} };
let drops = 0; // by pino's streams

/** Replace a method by one that looks the same. An inherited one is found anew at each call: others may patch it. */
function around(owner, name, make) {
  const found = owner && owner[name];
  if (typeof found !== 'function' || ours.has(found)) return;
  const own = Object.getOwnPropertyDescriptor(owner, name);
  const parent = Object.getPrototypeOf(owner);
  const replacement = make(own ? found : function inherited() { return parent[name].apply(this, arguments); });
  for (const key of Reflect.ownKeys(found)) {
    if (['prototype', 'arguments', 'caller'].includes(key)) continue;
    Object.defineProperty(replacement, key, Object.getOwnPropertyDescriptor(found, key));
  }
  ours.add(replacement);
  let [from, descriptor] = [parent, own];
  for (; !descriptor; from = Object.getPrototypeOf(from)) descriptor = Object.getOwnPropertyDescriptor(from, name);
  const { enumerable } = descriptor;
  Object.defineProperty(owner, name, { value: replacement, enumerable, writable: true, configurable: true });
  debug('found %s', name);
}

/** What is known of an object; it is looked at from its first time on. */
function stateOf(kind, object) {
  let state = states.get(object);
  if (state) return state;
  state = { ref: new WeakRef(object), written: 0, marks: new Marks(), seconds: 0, acquires: 0 };
  states.set(object, state);
  if (!followed.has(kind)) followed.set(kind, new Set());
  if (living(kind).length < MOST_OBJECTS) followed.get(kind).add(state);
  return state;
}

/** [object, state] of those that still exist. */
function living(kind) {
  const found = [];
  for (const state of followed.get(kind) || []) {
    const object = state.ref.deref();
    if (object) found.push([object, state]);
    else followed.get(kind).delete(state);
  }
  return found;
}

const counting = (kind) => (write) => function counted() {
  try {
    (states.get(this) || stateOf(kind, this)).written += 1;
  } catch (error) {
    debug('%s', error);
  }
  return write.apply(this, arguments);
};

/** A transport hands an entry over: its Log is claimed, and it was emitted when the last `behind` of `source` began. */
const handing = (calls, source, behind) => (method) => function handed(...given) {
  const before = emitted;
  safely(() => {
    const state = states.get(source(this));
    const time = now();
    if (owners.get(logOf(this)) !== calls) owners.set(logOf(this), calls);
    emitted = state ? state.marks.when(state.written - behind(this) + 1, state.written, time) : time;
  });
  try {
    return method.apply(this, given);
  } finally {
    emitted = before;
  }
};

/**
 * Call a method that answers by the callback at `place` or by a promise; `tell` learns of the answer, and its error.
 * The promise that is handed on rejects as the method's own does, so one that nobody handles stays unhandled.
 */
function answered(method, self, given, place, tell) {
  const callback = given[place];
  let result;
  try {
    if (typeof callback === 'function') {
      given[place] = function calledBack(...answer) {
        tell(answer[0]);
        return callback.apply(this, answer);
      };
      return method.apply(self, given);
    }
    result = method.apply(self, given);
  } catch (error) {
    tell(error || true);
    throw error;
  }
  if (result && typeof result.then === 'function') {
    return result.then((value) => {
      tell(false);
      return value;
    }, (error) => {
      tell(error || true);
      throw error;
    });
  }
  tell(false);
  return result;
}

const writing = (write) => function written(...given) {
  const tell = safely(() => {
    const calls = owners.get(this) || direct;
    const ticket = calls.enter(Array.isArray(given[0]) ? given[0].length : 1, emitted === null ? now() : emitted);
    return (error) => calls.leave(ticket, error);
  });
  return tell ? answered(write, this, given, given.length - 1, tell) : write.apply(this, given);
};

const timing = (connect) => function timed(...given) {
  const tell = safely(() => {
    const state = stateOf('pool', this);
    const since = now();
    return () => {
      state.seconds += now() - since;
      state.acquires += 1;
    };
  });
  return tell ? answered(connect, this, given, 0, tell) : connect.apply(this, given);
};

/** A stream that makes its own write() in its constructor is met there all the same: it calls on(). */
const meeting = (kind) => (on) => function met(...given) {
  if (!states.has(this)) {
    safely(() => {
      const state = stateOf(kind, this);
      if (kind === 'thread') return;
      EventEmitter.prototype.on.call(this, 'drop', () => { drops += 1; });
      if (!this.sync) EventEmitter.prototype.on.call(this, 'write', (bytes) => { state.written += bytes; });
    });
  }
  return on.apply(this, given);
};

/** Entries, of streams of objects; NaN where the stream does not tell. */
const buffered = (stream) => stream.writableLength + ('readableLength' in stream ? stream.readableLength : 0);
/** Without what is not known. */
const known = (row) => Object.fromEntries(Object.entries(row).filter(([, value]) => !Number.isNaN(value) && value !== undefined));
const logOf = (transport) => (transport.common || transport).cloudLog;
const toCloud = (transport) => ours.has((logOf(transport) || {}).write);

/** The patch of each package by its name: what it needs of the exports is looked for, never taken for granted. */
const PATCHES = new Map(Object.entries({
  winston(it) { // before 3.4 only a file of its own exports the class
    const Logger = it.Logger || (it.name === 'Logger' ? it : null);
    around(Logger && Logger.prototype, 'write', counting('winston'));
  },
  '@google-cloud/logging': ({ Log }) => around(Log && Log.prototype, 'write', writing),
  '@google-cloud/logging-winston': ({ LoggingWinston: it }) => around(it && it.prototype, 'log', handing(
    byWinston, (transport) => transport.parent, (transport) => buffered(transport) + buffered(transport.parent),
  )),
  '@google-cloud/logging-bunyan': ({ LoggingBunyan: it }) => {
    around(it && it.prototype, 'write', counting('bunyan'));
    around(it && it.prototype, '_writeCall', handing(byBunyan, (stream) => stream, buffered));
  },
  'sonic-boom': (it) => around(it.prototype, 'on', meeting('sonic')),
  'thread-stream': (it) => around(it.prototype, 'on', meeting('thread')),
  'pg-pool': (it) => around(it.prototype, 'connect', timing),
}));

/** A file belongs to the package of its last node_modules; of its files those that export what is needed count. */
function patch(file, exported) {
  const [, scope, name] = file.slice(file.lastIndexOf('node_modules')).split(/[\\/]/, 3);
  const found = PATCHES.get(scope && scope.startsWith('@') ? `${scope}/${name}` : scope);
  if (found && exported) found(exported);
}

/** Every CommonJS file passes here once, an ES module's import too. Around require() Node would take us for its caller. */
function hookLoading() {
  for (const file of Object.keys(require.cache)) safely(patch, file, require.cache[file].exports);
  const load = Module._extensions['.js'];
  Module._extensions['.js'] = function loaded(module, file) {
    const result = load.apply(this, arguments);
    safely(() => patch(file, module.exports));
    return result;
  };
}

/** Learn of a standard stream when the app opens it, then step aside. */
function hookStandard(name) {
  const descriptor = Object.getOwnPropertyDescriptor(process, name);
  if (!descriptor || !descriptor.get || !descriptor.configurable) return;
  Object.defineProperty(process, name, {
    ...descriptor,
    get() {
      const stream = descriptor.get.call(this);
      opened.set(name, { stream, marks: new Marks() });
      Object.defineProperty(process, name, descriptor);
      return stream;
    },
  });
}

function hookRequests() {
  const sockets = new WeakMap();
  const listen = (name, listener) => channels.subscribe(name, (message) => safely(listener, message));
  const end = (state, count) => {
    const before = requests.open;
    requests.open -= count;
    state.open -= count;
    if (!before !== !requests.open) safely(requests.turn);
  };
  listen('http.server.request.start', ({ socket }) => {
    let state = sockets.get(socket);
    if (!state) {
      state = { open: 0 };
      sockets.set(socket, state);
      socket.once('close', () => end(state, state.open)); // what was not answered never will be
    }
    requests.seen = true;
    end(state, -1);
  });
  listen('http.server.response.finish', ({ socket }) => {
    const state = sockets.get(socket);
    if (state && state.open > 0) end(state, 1);
  });
}

/** The entry at the head of a stream's buffer, in either shape that Node's streams have had. */
function headOf({ _writableState: state }) {
  const first = state && (state.bufferedRequest || (state.buffered && state.buffered[state.bufferedIndex]));
  return first && typeof first.chunk === 'object' ? first.chunk : null;
}

/** Since when the entry at the head has waited: `since` when it is new there, and as long as it stays that of its first look. */
function headSince(stream, since) {
  const head = headOf(stream);
  const known = heads.get(stream);
  if (head && known && known.ref.deref() === head) return Math.min(since, known.since);
  if (head) heads.set(stream, { ref: new WeakRef(head), since });
  return since;
}

/** Entries in winston's loggers and bunyan's streams, and in flight to Cloud Logging. */
function entryRows(time) {
  const used = [direct, byWinston, byBunyan].filter((calls) => calls.totals.arrived); // its logger may have let it go
  const sums = new Map(used.map((calls) => [calls, { held: 0, since: Infinity }]));
  const counted = new Set(); // a transport may belong to several loggers
  const streams = ['winston', 'bunyan'].flatMap((kind) => living(kind).map(([stream, state]) => [kind, stream, state]));
  for (const [kind, stream, state] of streams) {
    let calls = byBunyan;
    let ahead = 0;
    let transports = [];
    if (kind === 'winston') {
      const listed = Array.isArray(stream.transports);
      if (listed) transports = stream.transports;
      else ahead = NaN; // nobody knows where it sends
      calls = !listed || transports.some(toCloud) ? byWinston : elsewhere;
      for (const transport of transports) { // an entry goes to each of them: the longest counts
        const sending = toCloud(transport) && transport._writableState && transport._writableState.writing ? 1 : 0;
        if (!counted.has(transport)) ahead = Math.max(ahead, buffered(transport) - sending);
        counted.add(transport);
      }
    }
    const held = buffered(stream) + ahead;
    const sum = sums.get(calls) || { held: 0, since: Infinity };
    let since = Number.isNaN(held) ? Infinity : state.marks.look(held, state.written - held, time);
    for (const transport of transports) since = headSince(transport, since);
    sums.set(calls, { held: sum.held + held, since: Math.min(sum.since, since) });
  }
  return [...sums].map(([calls, { held, since }]) => calls.row(held, since, time)).filter((row) => row.entries >= 0);
}

function standardRows(time) {
  return [...opened].map(([queue, { stream, marks }]) => {
    const bytes = stream.writableLength;
    // _bytesDispatched: what the kernel has or is being given; writelen: the latter. Without them no age is known.
    const gone = stream._bytesDispatched - (stream._writableState && stream._writableState.writelen);
    const since = Number.isFinite(gone) ? marks.look(bytes, Math.max(0, gone), time) : Infinity;
    return { queue, kind: 'stdout', bytes, ...age(since, time) };
  }).filter((row) => Number.isFinite(row.bytes));
}

function pinoRows(time) {
  const [sonics, threads] = [living('sonic'), living('thread')];
  if (!sonics.length && !threads.length) return [];
  let [bytes, most, oldest] = [0, threads.length ? NaN : 0, Infinity];
  for (const [stream, state] of sonics) {
    bytes += stream._len;
    most += stream.maxLength || NaN;
    if (!stream.sync) oldest = Math.min(oldest, state.marks.look(stream._len, state.written, time));
  }
  for (const [stream] of threads) {
    const { buf, state } = stream[Object.getOwnPropertySymbols(stream).find((key) => key.description === 'kImpl')];
    const [written, read] = [Atomics.load(state, 4), Atomics.load(state, 8)]; // negative: it has ended
    bytes += buf.length + (read < 0 ? 0 : Math.max(0, written - read));
  }
  if (!Number.isFinite(bytes)) return [];
  const more = { ...(most > 0 && { most_bytes: most }), ...(sonics.length && { dropped: drops }) };
  return [{ queue: 'pino', kind: 'pino', bytes, ...age(oldest, time), ...more }];
}

function poolRows() {
  const pools = living('pool').filter(([pool]) => !pool.ended).slice(0, MOST_POOLS);
  return Object.fromEntries(pools.map(([pool, { seconds, acquires }], place) => [place ? `pool-${place + 1}` : 'main', known({
    size: pool.options && pool.options.max, // that there may be, as other pools say it
    checked_out: pool.totalCount - pool.idleCount,
    waiting: pool.waitingCount,
    wait_seconds: round(seconds),
    acquires,
  })]));
}

/** Whose process ids these are: the agent looks for them only in its own namespace. */
const pidNamespace = safely(() => ({ pid_ns: fs.readlinkSync('/proc/self/ns/pid') })) || {};

function identity() {
  const name = process.env.STALLSCOPE_HOOK_NAME || path.basename(process.argv[1] || 'node');
  return { v: 1, pid: process.pid, ...pidNamespace, name: name.slice(0, 40), queues: [] };
}

/** Call `say` at once, unless it was called too often of late: then when the next time has come. */
function turning(say) {
  let [spare, since, timer] = [AT_ONCE, now(), null];
  return () => {
    const time = now();
    spare = Math.min(AT_ONCE, spare + (time - since) * (1000 / SOON_MS));
    since = time;
    if (spare >= 1) {
      spare -= 1;
      say();
    } else if (!timer) {
      timer = setTimeout(() => {
        timer = null;
        spare -= 1;
        safely(say);
      }, SOON_MS);
      timer.unref();
    }
  };
}

function look() {
  const message = identity();
  message.queues = [standardRows, entryRows, pinoRows].flatMap((rows) => safely(rows, now()) || []);
  const pool = safely(poolRows) || {};
  if (requests.seen) message.in_flight = requests.open;
  if (Object.keys(pool).length) message.pool = pool;
  return message;
}

const waits = ({ queues, pool }) =>
  queues.some((row) => row.entries > 0 || row.bytes > 0) || Object.values(pool || {}).some((row) => row.waiting > 0);

/** How a message leaves: a function of its text and of whether it is the last, which must be out when it returns. */
function wayOut(address) {
  const file = /^file:(\/.+)$/.exec(address);
  if (file) return toFile(`${file[1]}.${process.pid}`);
  const udp = /^udp:(127\.\d+\.\d+\.\d+|localhost|\[::1\]):(\d{1,5})$/.exec(address);
  if (udp) return toSocket({ localhost: '127.0.0.1', '[::1]': '::1' }[udp[1]] || udp[1], Number(udp[2]));
  debug('STALLSCOPE_HOOK=%s: nothing is sent; allowed: udp: and a loopback address, file:, off', address);
  return null;
}

function toFile(target) {
  let busy = false;
  return (text, last) => {
    if (last) {
      fs.writeFileSync(`${target}.last`, text);
      fs.renameSync(`${target}.last`, target);
    } else if (!busy) {
      busy = true;
      const done = () => { busy = false; };
      fs.writeFile(`${target}.new`, text, (error) => (error ? done() : fs.rename(`${target}.new`, target, done)));
    }
  };
}

/** A socket that is bound, and a lookup that answers at once: so send() reaches the kernel before it returns. */
function toSocket(host, port) {
  const family = host === '::1' ? 6 : 4;
  const lookup = (...given) => given.pop()(null, host, family);
  let socket = null;
  return (text) => {
    if (!socket) {
      socket = dgram.createSocket({ type: `udp${family}`, lookup });
      socket.on('error', () => {
        safely(() => socket.close());
        socket = null;
      });
      socket.bind({ port: 0, address: host, exclusive: true }); // else a cluster's worker asks its primary
      socket.unref();
    }
    socket.send(text, port, host);
  };
}

function start() {
  const address = process.env.STALLSCOPE_HOOK || 'udp:127.0.0.1:9769';
  const send = isMainThread && address !== 'off' && !globalThis[MARKER] && wayOut(address);
  if (!send) return;
  Object.defineProperty(globalThis, MARKER, { value: true });
  hookLoading();
  safely(hookStandard, 'stdout');
  safely(hookStandard, 'stderr');
  safely(hookRequests);
  let sent = null;
  let newest = {};
  requests.turn = turning(() => {
    sent = sent || { text: '', time: now() }; // who has spoken takes leave
    send(JSON.stringify({ ...identity(), ...newest, in_flight: requests.open }), false);
  });
  const tell = (message, last) => {
    const text = JSON.stringify(message);
    const quiet = sent && sent.text === text && !waits(message) && now() - sent.time < QUIET_SECONDS - LOOK_MS / 2000;
    if (Buffer.byteLength(text) > MOST_BYTES || (quiet && !last)) return;
    sent = { text, time: now() };
    newest = message;
    send(text, last);
  };
  setInterval(() => safely(() => tell(look(), false)), LOOK_MS).unref();
  process.on('exit', () => safely(() => {
    const message = look();
    if (!sent && !waits(message)) return; // a short run that leaves nothing behind
    const counts = message.queues.flatMap((row) => ('entries' in row ? [row.entries] : []));
    const pending = counts.reduce((sum, count) => sum + count, 0);
    const known = pending || (counts.length && !waits(message)); // nobody knows how many entries some bytes are
    message.exit = known ? { pending } : {};
    tell(message, true);
  }));
}

safely(start);
