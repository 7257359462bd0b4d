'use strict';
/* `node loop.js WHAT URL RATE SECONDS`: Node's loop, held up or not; it knows nothing of any hook. */
const { Worker } = require('node:worker_threads');

const [what, , , seconds] = process.argv.slice(2);

function spin(milliseconds) {
  const clock = () => { const { user, system } = process.cpuUsage(); return (user + system) / 1000; };
  const end = clock() + milliseconds;
  while (clock() < end);
}

if (what === 'workers') {
  for (let n = 0; n < 2; n += 1) new Worker('for (;;);', { eval: true }).unref();
}
const kept = [];
setInterval(() => {
  if (what === 'computes') spin(300);
  else if (what === 'sleeps') Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 300);
  else if (what === 'pieces') {
    let left = 150;
    const step = () => { spin(2); if ((left -= 1) > 0) setImmediate(step); };
    step();
  } else if (what === 'collects') {
    if (!kept.length) for (let n = 0; n < 3e6; n += 1) kept.push({ n });
    global.gc();
  }
}, 1000);
setTimeout(() => process.exit(0), seconds * 1000);
