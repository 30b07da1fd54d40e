// Signing in and out.

import { failure, read, stored } from './api.mjs';
import { $, setText } from './elements.mjs';
import { forgetKey, KEY_HINT } from './keys.mjs';
import { refreshLists, stopLists } from './lists.mjs';
import { follow, unfollow } from './live.mjs';
import { setConnection, silence } from './notices.mjs';
import { page, when } from './page.mjs';

const LOGIN_HINT = 'The read token shows the numbers; the write token also allows changes. It stays in this tab.';

const FOREIGN_LOGIN_HINT = 'Sign in to the application, and load this page again: the application grants the access.';

export async function start() {
  try {
    page.session = await read('session');
  } catch (error) {
    if (error.status === 429 && !$('login').hidden) {
      setText($('login-error'), failure(error));
      return;
    }
    setConnection('lost', `cannot reach the dashboard: ${error.message}`);
    setTimeout(start, 3000);
    return;
  }
  $('login-token').hidden = !page.session.accepts_tokens;
  setText($('login-hint'), page.session.accepts_tokens ? LOGIN_HINT : FOREIGN_LOGIN_HINT);
  if (!page.session.can_read) return showLogin(stored('tollgate-token') ? 'The token is wrong.' : '');
  $('login').hidden = true;
  $('main').hidden = false;
  $('leave').hidden = !stored('tollgate-token');
  $('block-form').hidden = $('refund-form').hidden = true;
  $('blocks-panel').hidden = !page.session.can_write;
  $('rules-panel').hidden = !page.session.has_rules;
  $('rules-editor').hidden = true;
  follow(page.session);
  refreshLists();
}

// Asks for a token. A draft of rules stays, since the token may have been replaced meanwhile.
function showLogin(message) {
  stored('tollgate-token', null);
  unfollow();
  stopLists();
  Object.assign(page, { session: null, state: null, history: null, versions: null });
  if ($('question').open) $('question').close('no');
  clearMain();
  $('main').hidden = true;
  $('leave').hidden = true;
  $('login').hidden = false;
  $('login-error').textContent = message;
  $('token').value = '';
  if (!$('login-token').hidden) $('token').focus();
  setConnection('off', 'not signed in');
}

// Leaves nothing for the next one, who may have other rights.
function clearMain() {
  silence();
  forgetKey();
  const filled = '.note[role=status], table, .chart, .figures dd > *, #warnings, #store, #status-detail, #overload-note, #rules-note, #rules-error, #rules-result';
  for (const node of document.querySelectorAll(`main :is(${filled})`)) node.replaceChildren();
  for (const form of ['key-form', 'block-form', 'refund-form']) $(form).reset();
  setText($('status-text'), 'Waiting for numbers');
  setText($('key-message'), KEY_HINT);
  $('chart-policy').replaceChildren();
  $('diff-box').hidden = true;
  document.title = 'tollgate';
  setText($('title'), 'tollgate');
  setText($('announcer'), '');
}

$('login').addEventListener('submit', async (event) => {
  event.preventDefault();
  stored('tollgate-token', $('token').value.trim());
  await start();
  if (page.session?.can_read) $('main').focus({ preventScroll: true });
});

$('leave').addEventListener('click', () => {
  $('rules-form').reset();
  page.edited = null;
  showLogin('');
});
when('signed out', () => showLogin('Sign in again.'));
