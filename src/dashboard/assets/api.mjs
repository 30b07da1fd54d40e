// Requests to the API beside the page.

import { page, tell } from './page.mjs';

// The page of the dashboard. It reads the API beside it, follows the state by server-sent events, and writes text only.
const API = new URL('../api/', import.meta.url);

const REQUEST_TIMEOUT = 15_000; // more than a server needs that waits for Redis

export class ApiError extends Error {
  // The status is 0 without a response.
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

export async function request(path, options = {}) {
  const asked = page.session;
  const headers = { 'x-tollgate-dashboard': '1' };
  const token = stored('tollgate-token');
  if (token) headers.authorization = `Bearer ${token}`;
  if (options.body !== undefined) headers['content-type'] = 'application/json';
  const response = await fetch(new URL(path, API), {
    method: options.body === undefined ? 'GET' : 'POST',
    body: options.body === undefined ? undefined : JSON.stringify(options.body),
    headers,
    signal: options.signal ?? AbortSignal.timeout(REQUEST_TIMEOUT),
    credentials: 'same-origin',
    cache: 'no-store',
  }).catch((error) => { throw lost(error); });
  if (response.ok) return response;
  if (response.status === 401 && page.session && page.session === asked) tell('signed out');
  let message = `the server responded with ${response.status}`;
  try {
    message = (await response.json()).message || message;
  } catch { /* the body is not from the API */ }
  throw new ApiError(response.status, message);
}

const lost = ({ name }) =>
  new ApiError(0, name === 'TimeoutError' ? 'the server does not respond' : 'the connection is lost');

export const read = async (path, body) => {
  const text = await (await request(path, { body })).text().catch((error) => { throw lost(error); });
  return JSON.parse(text);
};

export const write = (path, body) => request(path, { body });

export function stored(name, value) {
  try {
    if (value === undefined) return sessionStorage.getItem(name);
    if (value === null) sessionStorage.removeItem(name);
    else sessionStorage.setItem(name, value);
  } catch { /* without storage, the token lasts until the page is left */ }
  if (value === undefined) return stored.memory?.[name];
  stored.memory = { ...stored.memory, [name]: value };
  return value;
}

export async function* events(body) {
  const decoder = new TextDecoder();
  const reader = body.getReader();
  try {
    for (let text = ''; ;) {
      const { done, value } = await reader.read().catch((error) => { throw lost(error); });
      if (done) return;
      text += decoder.decode(value, { stream: true });
      const blocks = text.split('\n\n');
      text = blocks.pop();
      for (const block of blocks) {
        const lines = block.split('\n').filter((line) => line.startsWith('data: '));
        if (lines.length) yield JSON.parse(lines.map((line) => line.slice(6)).join('\n'));
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

export const failure = (error) => `That failed: ${error.message}.`;
