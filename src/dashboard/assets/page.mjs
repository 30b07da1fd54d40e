// What the parts of the page share: the data that they show, and news about it.

import { time } from './text.mjs';

export const page = {
  session: null, // the rights of this client
  state: null, // the latest state
  history: null, // tracks with the numbers of each slot
  versions: null, // of the rules
  edited: null, // the version of the rules with which the editor began
};

const listeners = new Map();

// Calls a function at each news of this name.
export function when(name, listener) {
  listeners.set(name, [...listeners.get(name) ?? [], listener]);
}

export function tell(name, detail) {
  for (const listener of listeners.get(name) ?? []) listener(detail);
}

// The present time, by the clock to which times of the server belong.
export const serverTime = () => page.state?.time ?? Date.now();

// The clock of the history does not follow steps of the wall clock.
export const ahead = () => page.state?.ahead_millis ?? 0;

export const slotTime = (seconds, track) => time(seconds * 1000 + ahead(), track.step === 1);

export const where = () => page.state.servers.length ? 'for all instances' : 'in this instance';
