// Lists that are not part of the state.

import { ApiError } from './api.mjs';
import { refreshBlocks } from './blocks.mjs';
import { page, when } from './page.mjs';
import { refreshRules } from './rules.mjs';
import { refreshTopKeys } from './top_keys.mjs';

let timer;

// Reads what the state does not contain, every five seconds.
export async function refreshLists() {
  clearTimeout(timer);
  const owner = page.session;
  if (!owner) return;
  const lists = [refreshTopKeys, refreshBlocks, refreshRules].map((refresh) => refresh(owner));
  for (const { reason } of await Promise.allSettled(lists)) {
    // The stream shows that the connection is lost.
    if (reason && !(reason instanceof ApiError)) console.error(reason);
  }
  if (page.session && page.session === owner) timer = setTimeout(refreshLists, 5000);
}

export function stopLists() {
  clearTimeout(timer);
}

when('lists', refreshLists);
