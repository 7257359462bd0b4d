'use strict';
/* `node app.js LOGGER URL [RATE] [SECONDS]`: the same as app.py, with Node's loggers; it knows nothing of any hook. */
const fs = require('node:fs');
const { execFileSync } = require('node:child_process');

const [name, url, rate = '100', seconds = '20'] = process.argv.slice(2);
const quiet = fs.createWriteStream('/dev/null');

function openTelemetry() {
  const { LoggerProvider, BatchLogRecordProcessor } = require('@opentelemetry/sdk-logs');
  const { logs } = require('@opentelemetry/api-logs');
  const exporter = {
    export(records, done) {
      fetch(url, { method: 'POST', body: String(records.length) }).then(() => done({ code: 0 }), (error) => done({ code: 1, error }));
    },
    forceFlush: async () => {},
    shutdown: async () => {},
  };
  const provider = new LoggerProvider({ processors: [new BatchLogRecordProcessor({ exporter })] });
  logs.setGlobalLoggerProvider(provider);
  return provider;
}

/** curl waits as a handler does that sends within the call. */
const wait = () => execFileSync('curl', ['-s', '-o', '/dev/null', '-d', 'entry', url]);

const LOGGERS = {
  console: () => console.log,
  winston() {
    const winston = require('winston');
    return winston.createLogger({ transports: [new winston.transports.Stream({ stream: quiet })] }).info;
  },
  'winston-blocking': () => {
    const winston = require('winston');
    const Transport = require('winston-transport');
    class Blocking extends Transport {
      log(info, done) {
        wait();
        done();
      }
    }
    return winston.createLogger({ transports: [new Blocking()] }).info;
  },
  'winston-http': () => {
    const winston = require('winston');
    return winston.createLogger({ transports: [new winston.transports.Http({ host: '127.0.0.1', port: new URL(url).port })] }).info;
  },
  'winston-opentelemetry': () => {
    openTelemetry();
    const winston = require('winston');
    const { OpenTelemetryTransportV3 } = require('@opentelemetry/winston-transport');
    return winston.createLogger({ transports: [new OpenTelemetryTransportV3()] }).info;
  },
  opentelemetry: () => {
    const logger = openTelemetry().getLogger('app');
    return (body) => logger.emit({ body });
  },
  pino: () => {
    const logger = require('pino')(require('pino').destination('/dev/null'));
    return (text) => logger.info(text);
  },
  'pino-loki': () => {
    const pino = require('pino');
    const logger = pino(pino.transport({ target: 'pino-loki', options: { host: url, batching: { interval: 1 } } }));
    return (text) => logger.info(text);
  },
  bunyan: () => {
    const logger = require('bunyan').createLogger({ name: 'app', streams: [{ stream: quiet }] });
    return (text) => logger.info(text);
  },
  log4js: () => {
    const log4js = require('log4js');
    log4js.configure({ appenders: { out: { type: 'stdout' } }, categories: { default: { appenders: ['out'], level: 'info' } } });
    const logger = log4js.getLogger();
    return (text) => logger.info(text);
  },
  logtail: () => {
    const { Logtail } = require('@logtail/node');
    const logtail = new Logtail('token', { endpoint: url });
    return (text) => logtail.info(text);
  },
  sentry: () => {
    const Sentry = require('@sentry/node');
    Sentry.init({ dsn: `${url.replace('//', '//key@')}/1`, enableLogs: true });
    return (text) => Sentry.logger.info(text);
  },
};

const log = LOGGERS[name]();
const began = performance.now();
let calls = 0;
const timer = setInterval(() => {
  const elapsed = (performance.now() - began) / 1000;
  for (let due = Math.min(calls + 20, Math.floor(elapsed * rate)); calls < due; calls += 1) log(`hello ${calls}`);
  if (elapsed < seconds) return;
  clearInterval(timer);
  process.stderr.write(`${JSON.stringify({ calls })}\n`, () => process.exit(0));
}, 10);
