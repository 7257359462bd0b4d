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
 *                          and is told as refused as well when that was for want of quota (429). Where the class is not
 *                          met (in a bundle), the calls WriteLogEntries of HTTP/2 and the entries in each
 *   logging-winston        the same, and what waits before it in winston's logger and transport
 *   winston                what waits in loggers with other transports, with Http the requests that are not answered;
 *                          each entry is counted
 *   logging-bunyan         the stream's length; each entry is counted
 *   pino                   bytes in sonic-boom's or thread-stream's buffer, and in those of pino's worker, in which this
 *                          file runs too and tells the main thread
 *   http, https            requests between start and end, by Node's diagnostics channels; http2 is not seen. That the
 *                          first one came or the last one ended is told at once
 *   after a response       promises of async handlers (of http's and https's servers, and of Express's routes) that are not
 *                          settled when the response is out. What a handler starts and does not wait for is not seen, unless
 *                          it is given to globalThis[Symbol.for('stallscope.hook')]?.afterResponse(promise)
 *   timers                 this file's own timer, when it comes a second late or more
 *   pg                     the pool's numbers; connect() is timed
 * Ages: an entry in flight is as old as its emission. What waits before it is dated by the counts at each look: right
 * in a steady flow, off by two seconds at most after a burst. Entries that winston leaves behind in its transport after
 * a refusal, while later ones pass them by, are known by the one at their head, which stays the same.
 *
 * How they are met: each of these objects is made by EventEmitter's constructor (sonic-boom's class by util.inherits), and is
 * known by the methods that it has: in packages, in a bundler's file, and whatever loader brought it. Only the class Log of
 * @google-cloud/logging is none: it is known by its package's name, or by the transport that has one.
 *
 * What it knows is told as well, as `log`: loggers that are known, what keeps entries to itself (a transport of winston,
 * bunyan's stream or pino's target that is none of the known), and on what other ways something leaves the process: posts by
 * http, fetch, http2, other TCP connections, worker threads. STALLSCOPE_HOOK_LOGS=stdout vouches that the app logs to
 * standard output alone.
 *
 * Node 18, 20, 22, 24; winston 3, logging-winston 5 to 7, logging-bunyan 5 and 6, pino 8 to 10, pg 8 (docs/log-proofs.md).
 * Nothing is done in other worker threads; each process of a cluster reports
 * for itself. A patched method does what it did before, but the promise of Log.write() and of connect() settles one
 * microtask later, and a stack shows a line of this file for each file that is being loaded and each emitter that is made.
 * Nothing here keeps the
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
const { PerformanceObserver, monitorEventLoopDelay } = require('node:perf_hooks');
const util = require('node:util');
const { BroadcastChannel, isMainThread, threadId, workerData } = require('node:worker_threads');

const LOOK_MS = 2000;
const QUIET_SECONDS = 10; // between two messages while nothing changes and nothing waits
const MOST_BYTES = 8192; // of a message
const AT_ONCE = 10; // that the first request came or the last one ended is told at once, this often in a row,
const SOON_MS = 500; // and then twice a second
const MOST_NUMBER = 1e15; // a larger one is none that the agent believes
const MOST_POOLS = 16;
const MOST_OBJECTS = 1024; // loggers or streams of a kind that are looked at
const MOST_TICKETS = 1000; // calls in flight whose age is known; further ones are counted only
const MOST_MARKS = 128;
const LATE_SECONDS = 1; // from so much on the timer of the looks is told as late
const MOST_PIECES = 10000; // of work after a response
const MOST_TIMED = 8; // kinds of log calls that are told
const SLOW_MS = 10; // a log call is slow, and
const LATE_MS = 50; // the event loop late, from so long on
const LOOP_MS = 100; // between two looks of Node's own histogram at the loop: its timer is native, and costs by how often it fires
const RESOURCE_EXHAUSTED = 8; // of gRPC; HTTP calls it 429
const MARKER = Symbol.for('stallscope.hook');
const CHANNEL = 'stallscope.hook'; // between pino's worker and the main thread
const MOST_NAMES = 8; // of loggers, in each list of a message
const WRITE_ENTRIES = '/google.logging.v2.LoggingServiceV2/WriteLogEntries';
const SENDING = new Set(['POST', 'PUT', 'PATCH']); // entries leave the process by none of the others
/** Of databases: what is sent there is no log. 80 and 443: what HTTP sends there is known by its methods. */
const OTHER_PORTS = new Set([80, 443, 1433, 1521, 3306, 5432, 6379, 6432, 11211, 27017]);
/** Drawn now, because the app's tests may replace either. */
const token = Date.now().toString(36) + Math.random().toString(36).slice(2, 10);
const debug = util.debuglog('stallscope-hook');
/** Seconds; bound now, because the app's tests may replace the clock. */
const now = ((clock) => () => clock() / 1000)(performance.now.bind(performance));
const milliseconds = performance.now.bind(performance);
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
    if (ticket.left) return; // some libraries call back twice
    ticket.left = true;
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
const byHttp = new Calls('winston-http', 'winston'); // winston's own transport of that name
const byRpc = new Calls('google-cloud-logging', 'google-cloud-logging'); // HTTP/2, where no Log is met
const byOtel = new Calls('otel-batch', 'otel-batch');
const byLogtail = new Calls('logtail', 'logtail');
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
const knownLoggers = new Set(); // that were used
const ways = new Set(); // on which something was sent that may have been entries
const kinds = new WeakMap(); // of prototypes: how their objects are met, or null
const workers = new Map(); // what pino's workers told last, by their thread's id
let drops = 0; // by pino's streams
let ofWorkers = null; // the channel on which they tell it

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

/** Whether a property is still what this file made of it: others may have put theirs in its place. */
const isOwn = (owner, name, part, made) => (Object.getOwnPropertyDescriptor(owner, name) || {})[part] === made;

/** What is known of an object; it is looked at from its first time on. */
function stateOf(kind, object) {
  let state = states.get(object);
  if (state) return state;
  state = { ref: new WeakRef(object), written: 0, marks: new Marks(), met: now(), seconds: 0, acquires: 0 };
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
        tell(answer[0], answer[1]);
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

/** Time in log calls by what takes them: calls, ms, slow calls, ms of these, ms of the slowest since the last look. */
const inCalls = new Map();

function spent(name, took) {
  let row = inCalls.get(name);
  if (!row) {
    if (inCalls.size >= MOST_TIMED - 1) name = 'other';
    row = inCalls.get(name) || [0, 0, 0, 0, 0];
    inCalls.set(name, row);
  }
  row[0] += 1;
  row[1] += took;
  if (took >= SLOW_MS) {
    row[2] += 1;
    row[3] += took;
    row[4] = Math.max(row[4], took);
  }
}

/** Time a method that writes, or hands an entry on, before it returns. */
const timed = (name) => (method) => function inTime() {
  const began = milliseconds();
  try {
    return method.apply(this, arguments);
  } finally {
    spent(name, milliseconds() - began);
  }
};

/** Bytes that a stream takes: counted as it is written to. */
const weighing = (write) => function weighed(data) {
  safely(() => { stateOf('thread', this).written += data.length; });
  return write.apply(this, arguments);
};

/** A stream of sonic-boom; it is known from its constructor on, which calls on(). */
function meetSonic(stream) {
  if (states.has(stream)) return;
  const state = stateOf('sonic', stream);
  around(stream, 'write', timed('pino'));
  EventEmitter.prototype.on.call(stream, 'drop', () => { drops += 1; });
  if (!stream.sync) EventEmitter.prototype.on.call(stream, 'write', (bytes) => { state.written += bytes; });
}

/** An HTTP request of winston's transport: one entry, or a batch of them. */
const posting = (request) => function posted(...given) {
  const place = given.findIndex((each) => typeof each === 'function');
  const entries = Array.isArray(given[0]) ? given[0].length : 1;
  if (place < 0 || !entries || (given[0] && ['query', 'stream'].includes(given[0].method))) return request.apply(this, given);
  const ticket = byHttp.enter(entries, now());
  return answered(request, this, given, place, (error, response) => {
    const status = response && response.statusCode;
    byHttp.leave(ticket, error || (status >= 400 && { code: status }));
  });
};

/** A request of HTTP/2: entries for Cloud Logging, or something that nobody knows. */
const requesting = (request) => function requested(headers) {
  const stream = request.apply(this, arguments);
  safely(() => {
    const field = (name) => (Array.isArray(headers) ? headers[headers.indexOf(name) + 1] : (headers || {})[name]);
    if (field(':path') === WRITE_ENTRIES) meetRpc(stream);
    else if (SENDING.has(field(':method'))) ways.add('http2');
  });
  return stream;
};

function meetRpc(stream) {
  let [ticket, status] = [null, ''];
  const look = (headers) => { status = headers['grpc-status'] || status; };
  around(stream, 'write', (write) => function written(chunk) {
    if (!ticket) safely(() => { ticket = byRpc.enter(entriesIn(chunk), now()); });
    return write.apply(this, arguments);
  });
  stream.on('response', look);
  stream.on('trailers', look);
  stream.once('close', () => safely(() => ticket && byRpc.leave(ticket, status !== '0' && { code: Number(status) })));
}

/** Entries in a message of gRPC: field 4 of WriteLogEntriesRequest, by protobuf's wire format; 1 where that cannot be told. */
function entriesIn(chunk) {
  if (!Buffer.isBuffer(chunk) || chunk[0] !== 0) return 1; // compressed
  let [place, entries] = [5, 0];
  const number = () => {
    for (let [value, shift] = [0, 1]; ; shift *= 128) {
      const byte = chunk[place++];
      value += (byte & 127) * shift;
      if (!(byte & 128)) return value;
    }
  };
  while (place < chunk.length) {
    const tag = number();
    if (tag === 34) entries += 1;
    if ((tag & 7) === 2) place += number();
    else if ((tag & 7) === 0) number();
    else return entries || 1;
  }
  return entries || 1;
}

/** Entries, of streams of objects; NaN where the stream does not tell. */
const buffered = (stream) => stream.writableLength + ('readableLength' in stream ? stream.readableLength : 0);
const logOf = (transport) => (transport.common || transport).cloudLog;
const toCloud = (transport) => ours.has((logOf(transport) || {}).write);

/** The prototype in an object's chain that has a method of its own; the patch goes there. */
function ownerOf(object, name) {
  let owner = object;
  while (owner && !Object.prototype.hasOwnProperty.call(owner, name)) owner = Object.getPrototypeOf(owner);
  return owner;
}

const patchLog = (log) => {
  if (log && 'getEntriesStream' in log) around(ownerOf(log, 'write'), 'write', writing); // LogSync has no such method
};

/** Transports of winston that write at once, or into a stream whose own length is looked at; more names may follow. */
const DIRECT = [
  ['stderrLevels', 'consoleWarnLevels'], // Console
  ['dirname', 'filename', '_stream'], // File
  ['logStream', 'filename'], // winston-daily-rotate-file
];

/** Meet a transport of winston: what it is, null for one that keeps to itself. */
function meetTransport(transport) {
  const log = logOf(transport);
  if (log) {
    patchLog(log);
    if (toCloud(transport)) {
      around(ownerOf(transport, 'log'), 'log', handing(
        byWinston, (it) => it.parent, (it) => buffered(it) + buffered(it.parent),
      ));
      return 'logging-winston';
    }
    return 'transport' in log ? 'logging-winston' : null; // redirectToStdout
  }
  const post = ['_doRequest', '_request'].find((name) => typeof transport[name] === 'function');
  if (post && 'ssl' in transport) {
    around(ownerOf(transport, post), post, posting);
    return 'winston';
  }
  if ('_stream' in transport && 'isObjectMode' in transport) return Number.isFinite(transport._stream.writableLength) ? 'winston' : null;
  const emits = transport._logger && typeof transport._logger.emit === 'function'; // to a processor of OpenTelemetry
  if (emits && living('otel').length) return 'otel-batch';
  return DIRECT.some((names) => names.every((name) => name in transport)) ? 'winston' : null;
}

/** A logger of winston is met when it logs first: then it has its transports. */
const logging = (write) => function counted() {
  safely(() => {
    if (!states.has(this)) {
      stateOf('winston', this);
      if (Array.isArray(this.transports)) this.transports.forEach((each) => safely(meetTransport, each));
      states.get(this).label = ['winston', ...(this.transports || []).map(nameOf)].join(' ').slice(0, 60);
    }
    states.get(this).written += 1;
  });
  const began = milliseconds();
  try {
    return write.apply(this, arguments);
  } finally {
    spent((states.get(this) || {}).label || 'winston', milliseconds() - began);
  }
};

/** bunyan's loggers have streams. */
const adding = (add) => function added(...given) {
  const result = add.apply(this, given);
  safely(() => this.streams.forEach(({ stream }) => '_writeCall' in stream || stateOf('bunyan-stream', stream)));
  return result;
};

/**
 * Work that goes on although its response is sent: promises of handlers that are not settled when it is out. It is told once
 * it has outlived a look: the last lines of a handler are none. One that nobody can settle any more is forgotten with it.
 */
const after = { working: new WeakMap(), held: new Set(), pieces: 0, seconds: 0, looked: now() };

function enterPiece(piece) {
  if (piece.over || piece.ref || after.held.size >= MOST_PIECES) return;
  piece.since = now();
  piece.told = piece.since;
  piece.ref = new WeakRef(piece);
  after.held.add(piece.ref);
}

function leavePiece(piece) {
  piece.over = true;
  if (piece.counted) after.seconds += now() - piece.told;
  after.held.delete(piece.ref);
}

/** Until it is settled this promise works for a piece. It is handed on as `answered` does: what nobody handles stays unhandled. */
function following(promise, piece, over) {
  piece.promises += 1;
  const settled = () => {
    piece.promises -= 1;
    if (!piece.promises) safely(over);
  };
  return promise.then((value) => {
    settled();
    return value;
  }, (error) => {
    settled();
    throw error;
  });
}

/** A handler of requests; its response is the second of its arguments. Other thenables may only begin when they are asked. */
const handling = (handler) => function handled(request, response) {
  const result = handler.apply(this, arguments);
  if (!util.types.isPromise(result) || !response || typeof response !== 'object') return result;
  let piece = after.working.get(response);
  if (!piece) {
    piece = { promises: 0 };
    after.working.set(response, piece);
  }
  const own = piece;
  return following(result, own, () => {
    after.working.delete(response);
    leavePiece(own);
  });
};

/** on() of a server: what listens to its requests is followed, and is found and removed as what it was. */
const registering = (on) => function registered(event, listener) {
  if (event !== 'request' || typeof listener !== 'function' || listener.listener) return on.apply(this, arguments); // once()
  const followed = handling(listener);
  followed.listener = listener;
  return on.call(this, event, followed);
};

const PLAIN = [Function.prototype, Object.getPrototypeOf(async () => {})];
/** A layer of Express's router: its handler is replaced when it is called first, unless it is a router or an app of its own. */
const routing = (handle) => function routed() {
  safely(() => {
    const found = this.handle;
    if (typeof found === 'function' && found.length < 4 && PLAIN.includes(Object.getPrototypeOf(found))) around(this, 'handle', handling);
  });
  return handle.apply(this, arguments);
};

function afterResponse(promise) {
  if (!util.types.isPromise(promise)) return promise;
  const piece = { promises: 0 };
  enterPiece(piece);
  return following(promise, piece, () => leavePiece(piece));
}

function afterRow() {
  const time = now();
  let held = 0;
  for (const ref of after.held) {
    const piece = ref.deref();
    if (!piece) after.held.delete(ref);
    else if (piece.since <= after.looked) {
      held += 1;
      if (!piece.counted) after.pieces += 1;
      piece.counted = true;
      after.seconds += time - piece.told;
      piece.told = time;
    }
  }
  after.looked = time;
  return { now: held, pieces: after.pieces, seconds: round(after.seconds) };
}

/** Classes by a method of their own, other methods that they have, what is put around them, and what is done with each object. */
const CLASSES = [
  ['startTimer', ['configure', 'profile', '_transform'], (owner) => around(owner, 'write', logging)],
  ['_writeCall', ['formatEntry_'], (owner) => {
    around(owner, 'write', counting('bunyan'));
    around(owner, '_writeCall', handing(byBunyan, (stream) => stream, buffered));
  }, (stream) => queueMicrotask(() => safely(patchLog, stream.cloudLog))],
  ['reopenFileStreams', ['addStream'], (owner) => {
    around(owner, 'addStream', adding);
    around(owner, '_emit', timed('bunyan'));
  }],
  ['flushSync', ['writableNeedDrain', 'unref'], (owner) => around(owner, 'write', weighing), (stream) => {
    stateOf('thread', stream);
    listenToWorkers();
  }],
  ['_pulseQueue', ['connect', '_isFull'], (owner) => around(owner, 'connect', timing)],
  ['request', ['goaway', 'settings'], (owner) => around(owner, 'request', requesting)],
  ['closeIdleConnections', ['closeAllConnections', 'setTimeout'], (owner) => around(owner, 'on', registering)],
  ['getHeapSnapshot', ['postMessage', 'terminate'], () => {}, (worker) => stateOf('worker', worker)],
];

function meet(object) {
  const prototype = Object.getPrototypeOf(object);
  let kind = kinds.get(prototype);
  if (kind === undefined) {
    kind = CLASSES.find(([own, others]) => own in prototype && others.every((name) => name in prototype)) || null;
    kinds.set(prototype, kind);
    if (kind) kind[2](ownerOf(prototype, kind[0]));
  }
  if (kind && kind[3]) kind[3](object);
}

/** Every emitter that is made passes here: EventEmitter's constructor calls init(). */
function hookClasses() {
  const { init } = EventEmitter;
  if (typeof init === 'function') {
    EventEmitter.init = function made(options) {
      init.call(this, options);
      try {
        meet(this);
      } catch (error) {
        debug('%s', error);
      }
    };
  }
  // sonic-boom does not call EventEmitter's constructor, but on() in its own: a class that inherits waits for its first on().
  around(util, 'inherits', (inherits) => function inherited(type, parent) {
    const result = inherits.apply(this, arguments);
    if (parent === EventEmitter) safely(awaitFirst, type.prototype);
    return result;
  });
  Module.syncBuiltinESMExports();
}

/** The first on() of any other class takes this one away, unless somebody has put his own in its place: that may call this one. */
function awaitFirst(prototype) {
  if (Object.prototype.hasOwnProperty.call(prototype, 'on')) return; // sonic-boom has none of its own
  const value = function on() {
    if ('_len' in this && 'reopen' in prototype) safely(meetSonic, this);
    else if (isOwn(prototype, 'on', 'value', value)) Reflect.deleteProperty(prototype, 'on'); // not from one that is frozen
    return Object.getPrototypeOf(prototype).on.apply(this, arguments);
  };
  // as the inherited one, or for...in would miss it
  Object.defineProperty(prototype, 'on', { value, enumerable: true, writable: true, configurable: true });
}

/** OpenTelemetry's batch processor is met by its first record; what its exporter was given and has not answered is in flight. */
const emitting = (onEmit) => function emits() {
  if (!states.has(this)) safely(meetProcessor, this);
  const began = milliseconds();
  try {
    return onEmit.apply(this, arguments);
  } finally {
    spent('opentelemetry', milliseconds() - began);
  }
};

/** Seconds since the epoch of a record's [seconds, nanoseconds], on this file's clock. */
const onClock = (record) => {
  const [seconds, nanoseconds] = record.hrTimeObserved || record.hrTime;
  return now() - (Date.now() / 1000 - seconds - nanoseconds / 1e9);
};

function meetProcessor(processor) {
  if (!Array.isArray(processor._finishedLogRecords)) return; // another version: winston's transport to it stays unread
  stateOf('otel', processor);
  around(processor._exporter, 'export', (send) => function exported(...given) {
    const ticket = byOtel.enter(given[0].length, onClock(given[0][0]));
    return answered(send, this, given, 1, (result) => byOtel.leave(ticket, result && result.code !== 0 && (result.error || true)));
  });
  around(processor._metrics, 'dropLogs', (drop) => function dropped(count) {
    byOtel.totals.dropped += count;
    return drop.apply(this, arguments);
  });
}

/** Whether it calls what meetProcessor() listens to: releases without metrics of their own drop in silence. */
const countsDrops = ({ _metrics: metrics }) => Boolean(metrics && typeof metrics.dropLogs === 'function');

function otelRows(time) {
  const processors = living('otel').map(([processor]) => processor);
  if (!processors.length) return [];
  const held = processors.reduce((sum, { _finishedLogRecords: records }) => sum + records.length, 0);
  const since = Math.min(Infinity, ...processors.filter((each) => each._finishedLogRecords.length).map((each) => onClock(each._finishedLogRecords[0])));
  const most = processors.reduce((sum, { _maxQueueSize: size }) => sum + Number(size), 0);
  const row = { ...byOtel.row(held, since, time), ...(most > 0 && { most_entries: most }) };
  if (!row.dropped && !processors.every(countsDrops)) delete row.dropped; // a full queue drops, and nobody is told
  return [row];
}

/** Logtail's log() answers when its batch was taken. */
const syncing = (log) => function synced(...given) {
  const ticket = safely(() => {
    stateOf('logtail', this);
    return byLogtail.enter(1, now());
  });
  const began = milliseconds();
  try {
    return ticket ? answered(log, this, given, -1, (error) => byLogtail.leave(ticket, error)) : log.apply(this, given);
  } finally {
    spent('logtail', milliseconds() - began);
  }
};

/** What Sentry has not begun to send, where logs are enabled; its transport keeps what it sends in a closure. */
function sentryRows(time, unread) {
  return Object.values(globalThis.__SENTRY__ || {}).flatMap((carrier) => {
    const scopes = [carrier && carrier.defaultCurrentScope, carrier && carrier.globalScope];
    const client = scopes.map((scope) => scope && scope._client).find((each) => each);
    if (!client || !client._options || !client._options.enableLogs) return [];
    unread.add("Sentry's transport");
    const buffer = carrier.clientToLogBufferMap && carrier.clientToLogBufferMap.get(client);
    return Array.isArray(buffer) ? [{ queue: 'sentry', kind: 'sentry', entries: buffer.length }] : [];
  }).slice(0, 1);
}

function logtailRows(time) {
  return byLogtail.totals.arrived ? [byLogtail.row(0, Infinity, time)] : [];
}

/** The patch of each package by its name: what it needs of the exports is looked for, never taken for granted. */
const patchLayer = (Layer) => ['handle_request', 'handleRequest'].forEach((name) => around(Layer && Layer.prototype, name, routing));
const PATCHES = new Map(Object.entries({
  express: patchLayer, // 4
  router: patchLayer, // Express 5
  '@opentelemetry/sdk-logs': ({ BatchLogRecordProcessor: batch }) => batch && around(ownerOf(batch.prototype, 'onEmit'), 'onEmit', emitting),
  '@logtail/core': ({ Base: base }) => base && around(base.prototype, 'log', syncing),
  '@google-cloud/logging': ({ Log }) => around(Log && Log.prototype, 'write', writing),
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
  const get = function opens() {
    const stream = descriptor.get.call(this);
    if (!opened.has(name)) {
      opened.set(name, { stream, marks: new Marks() });
      safely(around, stream, 'write', timed(name));
    }
    if (isOwn(process, name, 'get', get)) Object.defineProperty(process, name, descriptor);
    return stream;
  };
  Object.defineProperty(process, name, { ...descriptor, get });
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
  listen('http.server.response.finish', ({ socket, response }) => {
    const piece = after.working.get(response);
    if (piece) enterPiece(piece);
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

/** Entries in winston's loggers and bunyan's streams, and in flight to Cloud Logging; what is not read goes to `unread`. */
function entryRows(time, unread) {
  const used = [direct, byWinston, byBunyan, byHttp].filter((calls) => calls.totals.arrived); // its logger may have let it go
  if (byRpc.totals.arrived && !used.some((calls) => calls !== byHttp)) used.push(byRpc);
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
      for (const transport of transports) {
        if (!safely(meetTransport, transport)) unread.add(`winston's ${nameOf(transport)}`);
        if (Array.isArray(transport.batchOptions) && sums.has(byHttp) && !counted.has(transport)) sums.get(byHttp).held += transport.batchOptions.length;
      }
      calls = !listed || transports.some(toCloud) ? byWinston : elsewhere;
      for (const transport of transports) { // an entry goes to each of them: the longest counts
        const sending = toCloud(transport) && transport._writableState && transport._writableState.writing ? 1 : 0;
        const into = 'isObjectMode' in transport && transport.isObjectMode ? transport._stream.writableLength : 0;
        if (!counted.has(transport)) ahead = Math.max(ahead, buffered(transport) - sending + into);
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

const nameOf = (object) => (object.constructor && object.constructor.name) || object.name || 'transport';

function standardRows(time) {
  return [...opened].map(([queue, { stream, marks }]) => {
    const bytes = stream.writableLength;
    // _bytesDispatched: what the kernel has or is being given; writelen: the latter. Without them no age is known.
    const gone = stream._bytesDispatched - (stream._writableState && stream._writableState.writelen);
    const since = Number.isFinite(gone) ? marks.look(bytes, Math.max(0, gone), time) : Infinity;
    return { queue, kind: 'stdout', bytes, ...age(since, time) };
  }).filter((row) => Number.isFinite(row.bytes));
}

/** What waits in sonic-boom's streams of this thread. */
function sonicTold(time) {
  const told = { streams: 0, bytes: 0, most: 0, since: Infinity };
  for (const [stream, state] of living('sonic')) {
    told.streams += 1;
    told.bytes += stream._len;
    told.most += Number(stream.maxLength) || NaN;
    if (!stream.sync) told.since = Math.min(told.since, state.marks.look(stream._len, state.written, time));
  }
  return told;
}

function pinoRows(time, unread) {
  const threads = living('thread').filter(([stream]) => !stream.closed);
  const sonics = sonicTold(time);
  if (!sonics.streams && !threads.length) return [];
  let { bytes, since } = sonics;
  let dropped = drops;
  for (const [stream, { written, marks, met }] of threads) {
    const { buf, state } = stream[Object.getOwnPropertySymbols(stream).find((key) => key.description === 'kImpl')];
    const [end, read] = [Atomics.load(state, 4), Atomics.load(state, 8)]; // negative: it has ended
    const waiting = buf.length + (read < 0 ? 0 : Math.max(0, end - read));
    bytes += waiting;
    since = Math.min(since, marks.look(waiting, Math.max(0, written - waiting), time));
    const told = workers.get(stream.worker.threadId);
    if (told) {
      bytes += told.bytes;
      dropped += told.dropped;
      since = Math.min(since, told.waits === null ? Infinity : told.at - told.waits);
      told.unread.forEach((name) => unread.add(name));
    } else if (time - met > (3 * LOOK_MS) / 1000) {
      unread.add("pino's worker, which does not load this hook");
    }
  }
  if (!Number.isFinite(bytes)) return [];
  const most = threads.length ? NaN : sonics.most;
  const more = { ...(most > 0 && { most_bytes: most }), ...((sonics.streams || workers.size) && { dropped }) };
  return [{ queue: 'pino', kind: 'pino', bytes, ...age(since, time), ...more }];
}

/** In the main thread, from the first stream into a worker on. */
function listenToWorkers() {
  if (ofWorkers || !isMainThread) return;
  ofWorkers = new BroadcastChannel(CHANNEL);
  ofWorkers.onmessage = ({ data }) => safely(() => workers.set(data.thread, { ...data, at: now() }));
  ofWorkers.unref();
}

/** Pino's targets that write by sonic-boom, in packages and as its plugins for bundlers name them; null: they are others' names. */
function targetsOf({ filename, workerData: given }) {
  const name = String(filename).replace(/^file:\/\//, '');
  const several = [...((given && given.targets) || []), ...((given && given.pipelines) || []).flat()].map(({ target }) => String(target));
  return several.length ? several : [name];
}
const KNOWN_TARGET = /pino[\\/-]file\.[cm]?js$|[\\/]pino-pretty([\\/.]|$)/;
const targetName = (target) => {
  const inside = target.slice(target.lastIndexOf('node_modules') + 1).split(/[\\/]/);
  return target.includes('node_modules') ? inside.slice(1, inside[1].startsWith('@') ? 3 : 2).join('/') : path.basename(target);
};

/** In pino's worker: what waits there is told to the main thread. */
function startInWorker() {
  const channel = new BroadcastChannel(CHANNEL);
  channel.unref();
  const unread = targetsOf(workerData).filter((target) => !KNOWN_TARGET.test(target)).map((target) => `pino's target ${targetName(target)}`);
  setInterval(() => safely(() => {
    const time = now();
    const { bytes, since } = sonicTold(time);
    channel.postMessage({ thread: threadId, bytes, waits: since < Infinity ? time - since : null, dropped: drops, unread });
  }), LOOK_MS / 2).unref();
}

/** Streams of bunyan's loggers: standard output and files are known, and those that this file reads. */
function bunyanUnread(unread) {
  const standard = [...opened.values()].map(({ stream }) => stream);
  for (const [stream] of living('bunyan-stream')) {
    const known = standard.includes(stream) || stream instanceof fs.WriteStream || 'records' in stream;
    if (!known) unread.add(`bunyan's ${nameOf(stream)}`);
  }
}

/** Sockets to others that are none of HTTP's (undici's have a symbol of that name) and no database's. */
function otherSockets() {
  const ofHttp = (socket) => '_httpMessage' in socket
    || Object.getOwnPropertySymbols(socket).some((symbol) => symbol.description === 'parser');
  return (process._getActiveHandles ? process._getActiveHandles() : []).some((handle) => handle.remotePort
    && !handle.server && !OTHER_PORTS.has(handle.remotePort) && !ofHttp(handle));
}

/** The message's `log`: the loggers that were met so far, and what they leave open. */
function loggers(rows, unread) {
  if (process.env.STALLSCOPE_HOOK_LOGS === 'stdout') return { hook: 'node', known: ['stdout'], unread: [], elsewhere: [] };
  for (const { kind } of rows) if (kind !== 'stdout' && kind !== 'sentry') knownLoggers.add(kind);
  if (living('bunyan-stream').length) knownLoggers.add('bunyan');
  safely(bunyanUnread, unread);
  const found = new Set(ways);
  if (!knownLoggers.size && safely(otherSockets)) found.add('tcp');
  const ofPino = new Set(living('thread').map(([stream]) => stream.worker));
  const own = ([worker]) => worker.threadId > 0 && !ofPino.has(worker) && nameOf(worker) !== 'InternalWorker'; // of Node's loaders
  if (living('worker').some(own)) found.add('worker');
  const short = (names) => [...names].slice(0, MOST_NAMES).map((name) => name.slice(0, 60));
  return { hook: 'node', known: short(knownLoggers), unread: short(unread), elsewhere: short(found) };
}

/** That something is posted is known by Node's diagnostics channels: http's, and undici's, which fetch() is made of. */
function hookSending() {
  for (const [name, way] of [['http.client.request.start', 'http'], ['undici:request:create', 'fetch']]) {
    channels.subscribe(name, ({ request }) => {
      if (request && SENDING.has(request.method)) ways.add(way);
    });
  }
}

function poolRows() {
  const pools = living('pool').filter(([pool]) => !pool.ended).slice(0, MOST_POOLS);
  return Object.fromEntries(pools.map(([pool, { seconds, acquires }], place) => [place ? `pool-${place + 1}` : 'main', {
    size: pool.options && pool.options.max, // that there may be, as other pools say it
    checked_out: pool.totalCount - pool.idleCount,
    waiting: pool.waitingCount,
    wait_seconds: round(seconds),
    acquires,
  }]));
}

/** How late the event loop is for a timer, by Node's own histogram; what its thread did, and the collector of garbage. */
const lateness = { delays: null, looks: 0, late: 0, seconds: 0, collecting: 0 };

function startLateness() {
  lateness.delays = monitorEventLoopDelay({ resolution: LOOP_MS });
  lateness.delays.enable();
  new PerformanceObserver((list) => {
    for (const { duration } of list.getEntries()) lateness.collecting += duration;
  }).observe({ entryTypes: ['gc'] });
}

function loopRows() {
  const { delays } = lateness;
  if (!delays || (!delays.count && !lateness.looks)) return [];
  const { count, mean, max, percentiles } = delays;
  let inTime = 0; // per cent
  if (count) for (const [percentile, value] of percentiles) if (value < (LOOP_MS + LATE_MS) * 1e6) inTime = Math.max(inTime, percentile);
  if (count) delays.reset(); // after which its first tick measures nothing
  lateness.looks += count;
  lateness.late += !count || max < (LOOP_MS + LATE_MS) * 1e6 ? 0 : Math.max(1, Math.round((count * (100 - inTime)) / 100));
  if (count) lateness.seconds += Math.max(0, count * (mean / 1e6 - LOOP_MS)) / 1000;
  const slowest = count ? Math.max(0, max / 1e6 - LOOP_MS) / 1000 : 0;
  const row = {
    loop: 'main', kind: 'node', looks: lateness.looks, late_looks: lateness.late, late_seconds: round(lateness.seconds),
    slowest_seconds: round(slowest), collecting_seconds: round(lateness.collecting / 1000),
  };
  const [ran, waited] = (safely(() => fs.readFileSync('/proc/self/schedstat', 'latin1')) || '').split(' ').map(Number);
  return [{ ...row, ...(waited >= 0 && { cpu_seconds: round(ran / 1e9), run_delay_seconds: round(waited / 1e9) }) }];
}

function callRows() {
  return [...inCalls].map(([handler, row]) => {
    const [calls, took, slow, slowTook, slowest] = row;
    row[4] = 0;
    return {
      handler, calls, seconds: Math.round(took * 1000) / 1e6, slow_calls: slow, slow_seconds: round(slowTook / 1000),
      slowest_seconds: round(slowest / 1000),
    };
  });
}

/** Whose process ids these are: the agent looks for them only in its own namespace. */
const pidNamespace = safely(() => ({ pid_ns: fs.readlinkSync('/proc/self/ns/pid') })) || {};

function identity() {
  const name = process.env.STALLSCOPE_HOOK_NAME || path.basename(process.argv[1] || '') || 'node';
  return { v: 1, pid: process.pid, ...pidNamespace, start: token, name: name.slice(0, 40), queues: [] };
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

/** The looks' own timer: when it came last, and those that came late. */
const timers = { last: now(), late: 0, seconds: 0 };

function noteTimer() {
  const time = now();
  const late = time - timers.last - LOOK_MS / 1000;
  timers.last = time;
  if (late < LATE_SECONDS) return;
  timers.late += 1;
  timers.seconds += late;
}

function look() {
  const message = identity();
  const unread = new Set();
  message.queues = [standardRows, entryRows, pinoRows, otelRows, logtailRows, sentryRows].flatMap((rows) => safely(rows, now(), unread) || []);
  message.log = safely(loggers, message.queues, unread);
  message.calls = safely(callRows) || [];
  message.loops = safely(loopRows) || [];
  const pool = safely(poolRows) || {};
  if (requests.seen) message.in_flight = requests.open;
  const work = afterRow();
  if (requests.seen || work.pieces) message.after_response = work;
  message.timers = { late: timers.late, late_seconds: round(timers.seconds) };
  if (Object.keys(pool).length) message.pool = pool;
  return message;
}

const waits = ({ queues, pool, after_response: work }) => (work && work.now > 0) ||
  queues.some((row) => row.entries > 0 || row.bytes > 0) || Object.values(pool || {}).some((row) => row.waiting > 0);

/** The texts of a message; those in its lists are names too. */
const TEXTS = new Set(['name', 'start', 'pid_ns', 'queue', 'kind', 'handler', 'loop', 'hook']);

/**
 * A message as the agent takes it, which for one fault refuses the whole of it: a limit that the app has as a text ("20", of
 * its environment) is its number, and what is no number of 0 to 1e15, such as a limit of Infinity, is not known.
 */
const textOf = (message) => JSON.stringify(message, function believed(key, value) {
  if (Array.isArray(this) || TEXTS.has(key) || (typeof value === 'object' && value)) return value;
  const numeric = ['number', 'bigint'].includes(typeof value) || (typeof value === 'string' && value.trim());
  const number = numeric ? Number(value) : NaN;
  return number >= 0 && number <= MOST_NUMBER ? number : undefined;
});

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
  const ofPino = !isMainThread && workerData && workerData.stateBuf && workerData.dataBuf; // thread-stream's
  const send = (isMainThread || ofPino) && address !== 'off' && !globalThis[MARKER] && wayOut(address);
  if (!send) return;
  Object.defineProperty(globalThis, MARKER, { value: Object.freeze({ afterResponse }) });
  hookClasses();
  if (ofPino) {
    startInWorker();
    return;
  }
  hookLoading();
  safely(hookSending);
  safely(hookStandard, 'stdout');
  safely(hookStandard, 'stderr');
  safely(hookRequests);
  safely(startLateness);
  let sent = null;
  let newest = { log: safely(loggers, [], new Set()) };
  requests.turn = turning(() => {
    sent = sent || { text: '', time: now() }; // who has spoken takes leave
    send(textOf({ ...identity(), ...newest, in_flight: requests.open }), false);
  });
  const tell = (message, last) => {
    const text = textOf(message);
    // what is counted at each look moves all the time: of that only trouble is news
    const trouble = [...message.calls.map((row) => row.slow_calls), ...message.loops.map((row) => row.late_looks)];
    const news = textOf({ ...message, calls: trouble, loops: [] });
    const quiet = sent && sent.text === news && !waits(message) && now() - sent.time < QUIET_SECONDS - LOOK_MS / 2000;
    if (Buffer.byteLength(text) > MOST_BYTES || (quiet && !last)) return;
    sent = { text: news, time: now() };
    newest = message;
    send(text, last);
  };
  timers.last = now();
  setInterval(() => safely(() => {
    noteTimer();
    tell(look(), false);
  }), LOOK_MS).unref();
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
