// The stub as a program on stdio: one message is one line. `node pipe.mjs legacy 100`

import { createInterface } from 'node:readline';
import { answered, resultsOf } from './answers.mjs';

const results = resultsOf(process.argv[2], Number(process.argv[3]));
createInterface({ input: process.stdin }).on('line', (line) => {
  const message = JSON.parse(line);
  if (message.id === undefined) return;
  const [head, rest] = answered(message, results);
  process.stdout.write(`${head}${rest}\n`);
});
