'use strict';
// The programs that the Node hook's tests run: `node hooked.js NAME ARGUMENT...`. They know nothing of the hook.
// What they have to say goes to standard error, one JSON object per line: some leave standard output unread.

const { writeSync } = require('node:fs');

const say = (record) => writeSync(2, `${JSON.stringify({ at: Date.now() / 1000, ...record })}\n`);
const stay = () => setInterval(() => {}, 1000);

/** A client that never answers: no network is needed to see entries wait. */
function deafLog(name) {
  const { Logging } = require('@google-cloud/logging');
  const log = new Logging({ projectId: 'lab' }).log(name);
  log.logging.loggingService = { writeLogEntries: () => new Promise(() => {}) };
  return log;
}

const RESOURCE = { resource: { type: 'global', labels: {} } };

/** Each gives the objects of a library, its parts too, with something that waits. */
const MAKERS = {
  stdout() {
    process.stdout.write('x'.repeat(300000));
    return [process.stdout, process.stdout._writableState];
  },
  winston() {
    const { createLogger, Transport } = require('winston');
    class Deaf extends Transport {
      log() {}
    }
    const logger = createLogger({ transports: [new Deaf()] });
    for (let seq = 1; seq <= 40; seq += 1) logger.info('hello', { seq });
    return [logger, ...logger.transports, ...logger.transports.map((each) => each._writableState)];
  },
  'logging-winston'() {
    const { createLogger } = require('winston');
    const { LoggingWinston } = require('@google-cloud/logging-winston');
    const transport = new LoggingWinston({ projectId: 'lab', ...RESOURCE });
    transport.common.cloudLog.logging.loggingService = { writeLogEntries: () => new Promise(() => {}) };
    const logger = createLogger({ transports: [transport] });
    for (let seq = 1; seq <= 40; seq += 1) logger.info('hello', { seq });
    return [logger, transport, transport.common, transport._writableState];
  },
  bunyan() {
    const { LoggingBunyan } = require('@google-cloud/logging-bunyan');
    const stream = new LoggingBunyan({ projectId: 'lab', ...RESOURCE });
    stream.cloudLog.logging.loggingService = { writeLogEntries: () => new Promise(() => {}) };
    const logger = require('bunyan').createLogger({ name: 'app', streams: [stream.stream('info')] });
    for (let seq = 1; seq <= 40; seq += 1) logger.info({ seq }, 'hello');
    return [stream];
  },
  sonic() {
    const pino = require('pino');
    const stream = pino.destination({ dest: 1, sync: false, maxLength: 400000 });
    const logger = pino(stream);
    for (let seq = 1; seq <= 300; seq += 1) logger.info({ seq }, 'x'.repeat(1000));
    return [stream];
  },
  thread() {
    const pino = require('pino');
    const stream = pino.transport({ target: 'pino/file', options: { destination: 1 } });
    const logger = pino(stream);
    for (let seq = 1; seq <= 300; seq += 1) logger.info({ seq }, 'x'.repeat(1000));
    const key = Object.getOwnPropertySymbols(stream).find((each) => each.description === 'kImpl');
    return Object.assign([stream, stream[key]], { ready: new Promise((resolve) => stream.worker.once('message', resolve)) });
  },
  pool() {
    const pool = new (require('pg').Pool)({ max: 3 });
    require('pg').Client.prototype.connect = () => {}; // never answers
    for (let number = 0; number < 5; number += 1) pool.connect().catch(() => {});
    return [pool];
  },
};

/** Each gives a function that logs once, or serves a request. */
const CALLS = {
  winston() {
    const { createLogger, Transport } = require('winston');
    class Takes extends Transport {
      log(info, then) {
        then();
      }
    }
    const logger = createLogger({ transports: [new Takes()] });
    return (seq) => { logger.info('hello', { seq }); };
  },
  'logging-winston'() {
    const { createLogger } = require('winston');
    const { LoggingWinston } = require('@google-cloud/logging-winston');
    const transport = new LoggingWinston({ projectId: 'lab', ...RESOURCE });
    transport.common.cloudLog.logging.loggingService = { writeLogEntries: async () => [{}] };
    const logger = createLogger({ transports: [transport] });
    return (seq) => { logger.info('hello', { seq }); };
  },
  pino() {
    const pino = require('pino');
    const logger = pino(pino.destination({ dest: '/dev/null', sync: false }));
    return (seq) => { logger.info({ seq }, 'hello'); };
  },
  async http() {
    const http = require('node:http');
    const server = http.createServer((request, response) => response.end('done'));
    await new Promise((resolve) => server.listen(0, '127.0.0.1', resolve));
    const agent = new http.Agent({ keepAlive: true });
    const { port } = server.address();
    return () => new Promise((resolve) => {
      http.get({ host: '127.0.0.1', port, agent }, (answer) => answer.resume().on('end', resolve));
    });
  },
};

const PROGRAMS = {
  /** Writes so many bytes at once to standard output, and half of them when they are gone; says what waits at changes. */
  standard(bytes) {
    let before = -1;
    const write = (size, then) => {
      say({ written: size });
      process.stdout.write('x'.repeat(size), then);
    };
    write(Number(bytes), () => setTimeout(write, 3000, Number(bytes) / 2));
    setInterval(() => {
      const waiting = process.stdout.writableLength;
      if (waiting !== before) say({ waiting });
      before = waiting;
    }, 10);
  },

  /** More entries than pino's buffer may hold; nobody reads. */
  dropping(limit, entries) {
    const pino = require('pino');
    const stream = pino.destination({ dest: 1, sync: false, maxLength: Number(limit) });
    let dropped = 0;
    stream.on('drop', () => { dropped += 1; });
    const logger = pino(stream);
    for (let seq = 1; seq <= Number(entries); seq += 1) logger.info({ seq }, 'x'.repeat(1000));
    setImmediate(() => {
      stream.flushSync = () => {}; // pino would write what waits, and wait itself for a reader that never comes
      say({ waiting: stream._len, dropped });
      process.exit(0);
    });
  },

  /** So many calls that are never answered, then the end. */
  flood(calls) {
    const log = deafLog('flood');
    for (let seq = 1; seq <= Number(calls); seq += 1) log.write(log.entry({}, { seq }), RESOURCE);
    setTimeout(() => process.exit(0), 300);
  },

  /** So many entries that nobody takes. */
  waiting(entries) {
    const log = deafLog('waiting');
    for (let seq = 1; seq <= Number(entries); seq += 1) log.write(log.entry({}, { seq }), RESOURCE);
    stay();
  },

  /** Calls that fail with each of these codes, each once with a promise and once with a callback. */
  failing(...codes) {
    for (const code of codes) {
      const log = deafLog('failing');
      log.logging.loggingService.writeLogEntries = async () => {
        throw Object.assign(new Error('refused'), code === 'none' ? {} : { code: Number(code) });
      };
      log.write(log.entry({}, 'hello'), RESOURCE).catch(() => {});
      log.write(log.entry({}, 'hello'), RESOURCE, () => {});
    }
    setTimeout(() => process.exit(0), 2500);
  },

  /** A logger whose transport never calls back. */
  winston(entries) {
    const { createLogger, Transport } = require('winston');
    class Deaf extends Transport {
      log() {}
    }
    const logger = createLogger({ transports: [new Deaf(), new Deaf()] });
    const child = logger.child({ child: 1 });
    for (let seq = 1; seq <= Number(entries); seq += 1) (seq % 2 ? logger : child).info('hello', { seq });
    setTimeout(() => process.exit(0), 300);
  },

  /** Pino's transport in its worker, to these targets, which nobody reads or which keep to themselves; so many entries each 20 ms. */
  targets(each, ...targets) {
    const pino = require('pino');
    const options = { destination: 1 };
    const listed = targets.map((target) => ({ target, options }));
    const worker = process.env.LAB_WORKER_OPTIONS ? { execArgv: [] } : {};
    const logger = pino(pino.transport({ ...(listed.length > 1 ? { targets: listed } : listed[0]), worker }));
    let emitted = 0;
    setInterval(() => {
      for (let count = 0; count < Number(each); count += 1) logger.info({ seq: emitted += 1 }, 'x'.repeat(1000));
      say({ emitted });
    }, 20);
  },

  /** winston's own transport over HTTP to this port, one request for each entry or for so many. */
  http(port, batch, entries) {
    const { createLogger, transports } = require('winston');
    const transport = new transports.Http({ port: Number(port), batch: Number(batch) > 1, batchCount: Number(batch) });
    transport.on('warn', () => {});
    const logger = createLogger({ transports: [transport] });
    for (let seq = 1; seq <= Number(entries); seq += 1) logger.info('hello', { seq });
    stay();
  },

  /** winston with transports that write at once, and with one that keeps what it is given to itself. */
  keeping(own) {
    const { createLogger, transports, Transport } = require('winston');
    class Keeping extends Transport {
      log(info, then) {
        (this.kept = this.kept || []).push(info);
        then();
      }
    }
    const file = new transports.File({ filename: '/dev/null' });
    const stream = new transports.Stream({ stream: process.stdout });
    const logger = createLogger({ transports: [new transports.Console(), file, stream, ...(own ? [new Keeping()] : [])] });
    for (let seq = 1; seq <= 10; seq += 1) logger.info('hello', { seq });
    setInterval(() => logger.info('hello'), 1000); // an app keeps its logger
  },

  /** bunyan to standard output, and to a stream of the app's own. */
  bunyan(own) {
    const { Writable } = require('node:stream');
    class Keeping extends Writable {
      _write() {}
    }
    const streams = [{ stream: process.stdout }, ...(own ? [{ stream: new Keeping() }] : [])];
    const logger = require('bunyan').createLogger({ name: 'app', streams }).child({ child: 1 });
    setInterval(() => logger.info('hello'), 1000);
  },

  /** Logs by console.log alone; sends something in this way to that port. */
  console(way, port) {
    console.log('hello');
    const { request } = require('node:http');
    const url = `http://127.0.0.1:${port}/`;
    const send = {
      nothing() {},
      get: () => request(url).on('error', () => {}).end(),
      http: () => request(url, { method: 'POST' }).on('error', () => {}).end('x'),
      fetch: () => fetch(url, { method: 'POST', body: 'x' }).catch(() => {}),
      tcp: () => require('node:net').connect(Number(port), '127.0.0.1').on('error', () => {}),
      worker: () => new (require('node:worker_threads').Worker)('setInterval(() => {}, 1000)', { eval: true }),
    };
    send[way]();
    stay();
  },

  /** Says its port; /hold is answered when /release comes, any other path at once. */
  web() {
    const held = [];
    const server = require('node:http').createServer((request, response) => {
      if (request.url === '/hold') held.push(response);
      else response.end('answer');
      if (request.url === '/release') held.splice(0).forEach((each) => each.end('late'));
    });
    server.listen(0, '127.0.0.1', () => say({ port: server.address().port }));
  },

  /** Answers after as many seconds as the path says; says its port. */
  timed() {
    const server = require('node:http').createServer((request, response) => {
      setTimeout(() => response.end('done'), 1000 * Number(request.url.slice(1)));
    });
    server.listen(0, '127.0.0.1', () => say({ port: server.address().port }));
  },

  /** Handlers that go on after their response, and all that looks like them, of `http` or of `express`; says its port. */
  after(kind) {
    const sleep = (seconds) => new Promise((resolve) => setTimeout(resolve, 1000 * seconds));
    const secondsOf = (request) => Number(request.url.split('?')[1] || 0);
    const handlers = {
      plain: (request, response) => { setTimeout(() => response.end('plain'), 1000 * secondsOf(request)); },
      async: async (request, response) => { await sleep(secondsOf(request)); response.end('async'); },
      early: async (request, response) => { response.end('early'); await sleep(secondsOf(request)); },
      given: (request, response) => {
        response.end('given');
        globalThis[Symbol.for('stallscope.hook')]?.afterResponse(sleep(secondsOf(request)));
      },
      never: async (request, response) => { response.end('never'); await new Promise(() => {}); },
      stream: async (request, response) => {
        for (let left = 10 * secondsOf(request); left > 0; left -= 1) { response.write('data: x\n\n'); await sleep(0.1); }
        response.end();
      },
      lazy: (request, response) => { response.end('lazy'); return { then: () => say({ began: true }) }; },
    };
    const started = (server) => server.listen(0, '127.0.0.1', () => say({ port: server.address().port }));
    const nameOf = (request) => request.url.split(/[/?]/)[1];
    if (kind === 'express') {
      const express = require('express');
      const [app, router] = [express(), express.Router()];
      for (const [name, handler] of Object.entries(handlers)) router.get(`/${name}`, handler);
      app.use(async (request, response, next) => { await sleep(0); next(); });
      app.use(router);
      app.get('/fails', async () => { throw new Error('on purpose'); });
      app.use((error, request, response, next) => response.end(error.message)); // eslint-disable-line no-unused-vars
      started(require('node:http').createServer(app));
    } else {
      const handler = (request, response) => handlers[nameOf(request)](request, response);
      const server = require('node:http').createServer(handler);
      say({ found: server.listeners('request')[0] === handler, once: server.once('request', () => say({ once: true })) === server });
      const extra = () => say({ wrong: true });
      server.on('request', extra).removeListener('request', extra);
      started(server);
    }
    setInterval(() => global.gc && global.gc(), 500).unref();
  },

  /** Nanoseconds of an async handler's request without a socket: of the handler, with what listens to a server. */
  async handled(count) {
    const server = require('node:http').createServer(async () => {});
    const response = {};
    const round = async (times) => {
      const began = process.hrtime.bigint();
      for (let number = 0; number < times; number += 1) await server.rawListeners('request')[0].call(server, {}, response);
      return Number(process.hrtime.bigint() - began) / times;
    };
    await round(Number(count));
    say({ ns: await round(Number(count)) });
    process.exit(0);
  },

  /** Asks a pool of `most` connections `asks` times at once; each answer is held for a while. */
  async pool(most, asks, hold) {
    const { Pool } = require('pg');
    const pool = new Pool({ connectionString: process.env.LAB_DSN, max: Number(most) });
    const work = async (number) => {
      const client = await pool.connect();
      const { rows } = await client.query('SELECT $1::int AS number', [number]);
      await new Promise((resolve) => setTimeout(resolve, Number(hold)));
      client.release();
      return rows[0].number;
    };
    const answers = await Promise.all(Array.from({ length: Number(asks) }, (_, number) => work(number)));
    const called = await new Promise((resolve, reject) => {
      pool.connect((error, client, release) => (error ? reject(error) : release(), resolve(typeof client.query)));
    });
    const queried = (await pool.query('SELECT 1 AS one')).rows[0].one;
    say({ answers, called, queried });
    await pool.end();
    const refused = await pool.connect().catch((error) => error.message);
    say({ refused });
  },

  /** A primary and two workers; each worker says its process id and stays. */
  /** Pools with these limits, as apps take them from their environment, and two streams of pino with a text as theirs. */
  limits(...limits) {
    const { Client, Pool } = require('pg');
    const pino = require('pino');
    Client.prototype.connect = () => {}; // never answers
    const pools = limits.map((max) => new Pool({ max: max === 'Infinity' ? Infinity : max }));
    for (const pool of pools) pool.connect().catch(() => {});
    const streams = [0, 0].map(() => pino.destination({ dest: '/dev/null', sync: false, maxLength: '300000' }));
    setTimeout(() => process.exit(pools.length + streams.length), 2500);
  },

  cluster() {
    const cluster = require('node:cluster');
    if (cluster.isPrimary) {
      cluster.fork();
      cluster.fork();
    }
    say({ pid: process.pid });
    stay();
  },

  /** A thread that logs to a stream of its own; its process says nothing else. */
  thread() {
    const { isMainThread, Worker } = require('node:worker_threads');
    if (isMainThread) new Worker(__filename, { argv: ['thread'] });
    else process.stdout.write('from the thread\n');
    stay();
  },

  /** CPU seconds of a log call of a library whose way out takes all at once; of a request for http. */
  async calls(kind, count) {
    const call = await CALLS[kind]();
    const run = async (times) => {
      for (let number = 0; number < times; number += 1) {
        await call(number);
        if (number % 100 === 99) await new Promise(setImmediate);
      }
    };
    await run(Number(count) / 5);
    const before = process.cpuUsage();
    await run(Number(count));
    const { user, system } = process.cpuUsage(before);
    say({ cpu: (user + system) / 1e6 / Number(count) });
    process.exit(0);
  },

  /** CPU seconds per second of a loop that has nothing to do. */
  async idle(seconds) {
    await new Promise((done) => setTimeout(done, 3000));
    const before = process.cpuUsage();
    await new Promise((done) => setTimeout(done, seconds * 1000));
    const { user, system } = process.cpuUsage(before);
    process.stdout.write(`${JSON.stringify({ cpu: (user + system) / 1e6 / seconds })}\n`);
  },

  /** CPU seconds per second of a program that logs at this rate, a second after its start. */
  async steady(kind, rate, seconds) {
    const call = await CALLS[kind]();
    const timer = setInterval(call, 1000 / Number(rate));
    setTimeout(() => {
      const before = process.cpuUsage();
      setTimeout(() => {
        const { user, system } = process.cpuUsage(before);
        say({ cpu: (user + system) / 1e6 / Number(seconds) });
        clearInterval(timer);
        process.exit(0);
      }, 1000 * Number(seconds));
    }, 1500);
  },

  /** Makes what the hook looks at, says so, takes one attribute away from it at SIGUSR2, and stays. */
  async missing(kind, attribute) {
    const made = MAKERS[kind]();
    process.on('SIGUSR2', () => {
      for (const owner of made) {
        const keys = [...Object.getOwnPropertySymbols(owner), attribute];
        const key = keys.find((each) => each.description === attribute) || attribute;
        if (key in owner) Object.defineProperty(owner, key, { value: undefined, configurable: true, writable: true });
      }
      say({ missing: attribute });
    });
    stay();
    await made.ready; // a thread that starts would find the attribute gone, and not only the hook
    say({ made: kind });
  },

  // What follows ends by itself, and is compared: with the hook and without.

  ordinary() {
    process.on('exit', (code) => console.log('exit', code));
    console.log('out', process.argv.slice(3), Object.keys(process.stdout).length > 0);
    console.error('err');
    process.stdin.on('data', (data) => console.log(String(data))).on('end', () => console.log('end of input'));
  },
  exits() {
    process.on('exit', (code) => console.log('exit', code, process.listeners('exit').length > 0));
    console.log('before');
    process.exit(7);
  },
  throws() {
    process.on('exit', (code) => console.log('exit', code));
    throw new TypeError('thrown on purpose');
  },
  rejects() {
    Promise.reject(new RangeError('rejected on purpose'));
    setTimeout(() => console.log('never reached'), 1000);
  },
  misses() {
    for (const name of ['winston', 'pino', 'pg', '@google-cloud/logging-winston']) {
      try {
        require(`${name}/no-such-file`);
      } catch (error) {
        console.log(error.code);
      }
    }
    require('a-package-that-is-not-there');
  },

  /** Ways in which apps put their own in the place of what the hook waits at: on() of util.inherits' classes, and stdout. */
  wraps() {
    const { EventEmitter } = require('node:events');
    const { inherits } = require('node:util');
    const made = (prepare = () => {}) => {
      function Client() { EventEmitter.call(this); }
      prepare(Client.prototype);
      inherits(Client, EventEmitter);
      return Client;
    };
    const told = {};
    const wrapper = (name, on) => function wrapped() {
      told[name] = (told[name] || 0) + 1;
      return on.apply(this, arguments);
    };
    const listens = (name, object) => {
      for (const event of ['a', 'a', 'b']) object.on(event, () => {});
      told[name] = [told[name], object.listenerCount('a'), object.listenerCount('b')];
    };
    const ofClass = made();
    ofClass.prototype.on = wrapper('class', ofClass.prototype.on);
    listens('class', new ofClass());
    const object = new (made())();
    object.on = wrapper('object', object.on);
    listens('object', object);
    class Heir extends made() {
      on() {
        told.heir = (told.heir || 0) + 1;
        return super.on(...arguments);
      }
    }
    listens('heir', new Heir());
    const before = made((prototype) => { prototype.on = wrapper('before', EventEmitter.prototype.on); });
    listens('before', new before());
    const frozen = made();
    Object.freeze(frozen.prototype);
    listens('frozen', new frozen());
    const mixed = {};
    for (const key in made().prototype) mixed[key] = EventEmitter.prototype[key]; // eslint-disable-line guard-for-in
    told.mixed = typeof mixed.on;
    const { get, ...rest } = Object.getOwnPropertyDescriptor(process, 'stdout');
    Object.defineProperty(process, 'stdout', { ...rest, get: wrapper('stdout', get) });
    told.same = process.stdout === process.stdout; // eslint-disable-line no-self-compare
    console.log(told);
  },

  /** A call that is refused and whose promise nobody handles. */
  unhandled() {
    const log = deafLog('unhandled');
    log.logging.loggingService.writeLogEntries = async () => { throw new Error('8 RESOURCE_EXHAUSTED'); };
    log.write(log.entry({}, 'hello'), RESOURCE);
    setTimeout(() => console.log('never reached'), 1000);
  },

  /** The faces of what is patched: names, lengths, keys, arguments, results, errors. */
  async faces() {
    const { Logging, Log } = require('@google-cloud/logging');
    const { LoggingWinston } = require('@google-cloud/logging-winston');
    const { LoggingBunyan } = require('@google-cloud/logging-bunyan');
    const winston = require('winston');
    const pino = require('pino');
    const Pool = require('pg').Pool;
    const faces = { Log, LoggingWinston, LoggingBunyan, Logger: winston.Logger, Pool: Object.getPrototypeOf(Pool) };
    for (const [name, { prototype }] of Object.entries(faces)) {
      const listed = [];
      for (const key in prototype) listed.push(key); // eslint-disable-line guard-for-in
      console.log(name, listed.sort());
      for (const key of ['write', 'log', '_writeCall', 'connect']) {
        const method = prototype[key];
        if (method) console.log(key, method.name, method.length, Object.entries(method));
      }
    }
    const log = new Logging({ projectId: 'lab' }).log('faces');
    const entry = log.entry({}, 'hello');
    const asked = [];
    const answers = [async () => [{ fine: 1 }], async () => { throw new Error('refused'); }];
    for (const answer of answers) {
      log.logging.loggingService = {
        writeLogEntries: (request, ...more) => {
          asked.push([request.entries.length, more.length]);
          return answer();
        },
      };
      console.log(await log.write(entry, RESOURCE).catch((error) => error.message));
      console.log(await log.info([entry, entry], RESOURCE).catch((error) => error.message));
      const given = await new Promise((resolve) => {
        const callback = (...all) => resolve(all.map((each) => (each && each.message) || each));
        console.log(log.write(entry, RESOURCE, callback));
      });
      console.log(given);
    }
    console.log(asked, log.write(entry, RESOURCE).catch(() => {}) instanceof Promise);
    const pool = new Pool();
    await pool.end();
    console.log(await pool.connect().catch((error) => error.message), pool.connect((error) => error.message));
    const logger = winston.createLogger({ transports: [new winston.transports.Console()] });
    console.log(logger.write({ level: 'info', message: 'hello' }), logger.info('again') === logger);
    pino(pino.destination({ sync: true })).info === undefined || console.log('pino');
    console.log(Object.getOwnPropertyDescriptor(process, 'stdout').get.name);
  },
};

const program = PROGRAMS[process.argv[2]];
if (require.main === module || process.argv[2] === 'thread') program(...process.argv.slice(3));
