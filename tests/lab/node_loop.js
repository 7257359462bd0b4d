'use strict';
/* `node node_loop.js --hold-ms N --every-ms N [--workers N] --seconds N --name TEXT`: an HTTP server without any hook, whose event loop
   is held by a callback for so long, so long after the last one; so many worker threads compute beside it. TEXT is the process's name. */
const http = require('node:http');
const { Worker } = require('node:worker_threads');

const words = process.argv.slice(2);
const given = (name, otherwise) => (words.includes(name) ? Number(words[words.indexOf(name) + 1]) : otherwise);

if (words.includes('--name')) process.title = words[words.indexOf('--name') + 1];
http.createServer((_, response) => response.end('here you are')).listen(0, '127.0.0.1');
for (let n = given('--workers', 0); n > 0; n -= 1) new Worker('for (;;);', { eval: true }).unref();

function hold() {
  const cpu = () => { const { user, system } = process.cpuUsage(); return (user + system) / 1000; };
  const end = cpu() + given('--hold-ms', 2);
  while (cpu() < end);
  setTimeout(hold, given('--every-ms', 50));
}

hold();
setTimeout(() => process.exit(0), given('--seconds', 5) * 1000);
