// A process of the client Bottleneck: tasks that wait for their turn and call.
//
// `outgoing --bottleneck DIR` runs this script, and reads the three lines that it prints: calls that were admitted, refused and
// failed; waits in microseconds; calls of each task. DIR holds node_modules with bottleneck and ioredis.
"use strict";

const http = require("node:http");
const { createRequire } = require("node:module");
const path = require("node:path");

const load = createRequire(path.join(path.resolve(process.argv[2]), "index.js"));
const Bottleneck = load("bottleneck");

const words = process.argv.slice(3);
const argument = (name) => {
  const place = words.indexOf(name);
  return place < 0 ? undefined : words[place + 1];
};
const number = (name) => Number(argument(name));

const [host, port] = argument("--address").split(":");
const beginsAt = number("--begins-at") * 1_000;
const endsAt = beginsAt + number("--seconds") * 1_000;
// All processes together, through Redis.
const settings = { minTime: 1_000 / number("--rate") };
const redis = argument("--redis");
if (redis !== undefined) {
  const { hostname, port: redisPort } = new URL(redis);
  Object.assign(settings, {
    id: "outgoing",
    datastore: "ioredis",
    clientOptions: { host: hostname, port: Number(redisPort) },
    Redis: load("ioredis"),
  });
}

const agent = new http.Agent({ keepAlive: true });
const limiter = new Bottleneck(settings);
limiter.on("error", (error) => {
  throw error;
});

const counts = { admitted: 0, refused: 0, failed: 0 };
const waits = [];
const starts = new Array(number("--tasks")).fill(0);
const isCounted = (time) => beginsAt <= time && time < endsAt;
// To the microsecond, by the wall clock.
const now = () => performance.timeOrigin + performance.now();

function call() {
  return new Promise((resolve) => {
    const request = http.get({ host, port, agent, path: "/" }, (response) => {
      response.resume();
      response.on("end", () => resolve(response.statusCode));
      response.on("error", () => resolve(0));
    });
    request.on("error", () => resolve(0));
  });
}

async function run(task) {
  for (;;) {
    const asked = now();
    if (asked >= endsAt) return;
    // An expiration is what its docs recommend, so that calls of a process that crashed end.
    const status = await limiter.schedule({ expiration: 60_000 }, () => {
      const started = now();
      if (isCounted(started)) {
        waits.push(Math.round((started - asked) * 1_000));
        starts[task] += 1;
      }
      return started < endsAt ? call() : undefined;
    });
    if (isCounted(now())) {
      if (status === 200) counts.admitted += 1;
      else if (status === 429) counts.refused += 1;
      else counts.failed += 1;
    }
  }
}

async function main() {
  await limiter.ready();
  const tasks = starts.map((_, task) => run(task));
  const end = new Promise((resolve) => setTimeout(resolve, endsAt - Date.now() + 100));
  // Calls that wait beyond the end are dropped.
  await Promise.race([Promise.all(tasks), end]);
}

main().then(() => {
  console.log(`${counts.admitted} ${counts.refused} ${counts.failed}`);
  console.log(waits.join(" "));
  console.log(starts.join(" "));
  process.exit(0);
});
