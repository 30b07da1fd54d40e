// What the page says about an action or the connection, and what it asks before one.

import { failure, read } from './api.mjs';
import { $, setText } from './elements.mjs';
import { page, tell } from './page.mjs';

const spoken = new Map(); // timers of live regions

export function setConnection(level, text) {
  const isNew = $('connection').dataset.state !== level;
  $('connection').dataset.state = level;
  setText($('connection'), text);
  if (isNew && page.session) tell('connection');
}

// Shows the result of an action in its panel, where it is read aloud.
export function report(panel, text, isFailure = false) {
  if (!page.session) return;
  $(`${panel}-message`).classList.toggle('bad', isFailure);
  readAloud($(`${panel}-message`), text);
}

// Sets the text of a live region. A text that is the same as before is only read again after the region was empty.
export function readAloud(node, text) {
  clearTimeout(spoken.get(node));
  node.textContent = '';
  spoken.set(node, setTimeout(() => { node.textContent = text; }, 50));
}

export function confirmed(title, text, action) {
  const dialog = $('question');
  setText($('confirm-title'), title);
  setText($('confirm-text'), text);
  setText($('confirm-yes'), action);
  dialog.returnValue = 'no';
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener('close', () => resolve(dialog.returnValue === 'yes'), { once: true });
  });
}

// Sends a change, and reports in a panel what was `done`, or why not. Returns whether it was made.
export async function change(panel, send, done) {
  try {
    await send();
  } catch (error) {
    report(panel, failure(error), true);
    return false;
  }
  report(panel, done);
  const latest = await read('state').catch(() => null);
  if (latest && page.state) Object.assign(page.state, { mode: latest.mode, overload: latest.overload, policies: latest.policies });
  tell('numbers');
  return true;
}

// Reads nothing aloud any more.
export function silence() {
  for (const timer of spoken.values()) clearTimeout(timer);
}
