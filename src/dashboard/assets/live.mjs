// Follows the state by server-sent events.

import { ApiError, events, read, request } from './api.mjs';
import { extend, fromApi, latestSecond } from './history.mjs';
import { setConnection } from './notices.mjs';
import { page, tell } from './page.mjs';

const SILENCE = 5_000; // after which a stream with an event a second is dead

const MAX_GAP = 5; // seconds without events, beyond which the history is loaded again

let stream = null; // of the attempt to follow
let retryNow = () => {};

export async function follow(owner) {
  stream?.abort();
  for (let failures = 0; page.session === owner;) {
    const attempt = stream = new AbortController();
    let timer;
    // A connection that breaks silently stays open for minutes.
    const watch = () => {
      clearTimeout(timer);
      timer = setTimeout(() => attempt.abort(), SILENCE);
    };
    const catchUp = async () => {
      clearTimeout(timer); // events wait meanwhile
      await loadHistory();
      watch();
    };
    try {
      watch();
      const response = await request('live', { signal: attempt.signal });
      await catchUp();
      for await (const event of events(response.body)) {
        watch();
        failures = 0;
        setConnection('live', 'live');
        if (Math.abs(event.second - latestSecond(page.history)) > MAX_GAP) await catchUp();
        receive(event);
      }
    } catch (error) {
      if (page.session !== owner) return;
      failures += 1;
      if (!(error instanceof ApiError)) console.error(error);
      const reason = error instanceof ApiError ? error.message : `the page has a fault: ${error.message}`;
      setConnection('lost', `${reason}; trying again`);
    } finally {
      clearTimeout(timer);
      attempt.abort(); // also if only the history could not be read
    }
    await new Promise((resolve) => {
      retryNow = resolve;
      setTimeout(resolve, Math.min(15, 2 ** failures) * 500);
    });
  }
}

window.addEventListener('online', () => retryNow());

document.addEventListener('visibilitychange', () => { if (!document.hidden) retryNow(); });

async function loadHistory() {
  page.history = fromApi(await read('history'));
}

function receive(next) {
  page.state = next;
  if (next.second > latestSecond(page.history)) extend(page.history, next); // or else the history contains it
  tell('numbers');
}

export function unfollow() {
  stream?.abort();
}
