// One key: its state under each policy, and what an operator does with it.

import { failure, read, write } from './api.mjs';
import { unblock } from './blocks.mjs';
import { $, button, element, fillOptions, group, meter, option, replaceChanged, setText } from './elements.mjs';
import { change, confirmed, report } from './notices.mjs';
import { page, serverTime, tell, when, where } from './page.mjs';
import { fill } from './table.mjs';
import { count, denialText, duration, nameOf, number, penaltyText, placeText, time, waitText } from './text.mjs';

export const KEY_HINT = 'Shows what is left of each policy. Charges nothing.';

const MAX_REASON = 200; // bytes

let lookedUp = null; // the key that is shown, its form, and its rows
let wanted = null; // the key that was asked for last

$('key-form').addEventListener('submit', (event) => {
  event.preventDefault();
  lookUp({ key: $('key').value, form: $('key-kind').value });
});

for (const input of [$('key'), $('key-kind')]) input.addEventListener('input', () => { forgetKey(); report('key', KEY_HINT); });

// Shows a key, after what was `done` with it.
export async function lookUp(asked, done = '') {
  $('key').value = asked.key;
  $('key-kind').value = asked.form;
  wanted = asked;
  try {
    const found = await read('key', { key: asked.key, form: asked.form });
    if (wanted !== asked) return; // another key was asked for, or is being typed
    lookedUp = asked;
    renderKey(found);
    report('key', `${done} State at ${time(serverTime(), true)}. Nothing was charged.`.trim());
  } catch (error) {
    if (wanted !== asked) return;
    forgetKey();
    report('key', `${done} ${failure(error)}`.trim(), true);
  }
}

// No action may hit a key other than the one in the field.
export function forgetKey() {
  wanted = lookedUp = null;
  $('block-form').hidden = $('refund-form').hidden = $('key-shown').hidden = true;
  fill($('key-states'), [], []);
  $('key-notes').replaceChildren();
}

function renderKey({ policies: rows, without_key: keyless }) {
  lookedUp.rows = rows;
  setText($('key-shown'), `State of ${nameOf(lookedUp)}`);
  $('key-shown').hidden = false;
  renderKeyNotes(rows, keyless);
  const optional = [
    ['Counted as', rows.some(({ key }) => key !== lookedUp.key), ({ key }) => ({ text: key, key: true })],
    ['Penalty', rows.some(({ penalty }) => penalty), (entry) => ({ text: penaltyText(entry.penalty), bad: isBanned(entry) })],
    ['Last denial', rows.some((entry) => entry.last_denial), (entry) => ({ text: denialText(entry.last_denial) })],
    ['Waits', rows.some((entry) => waitText(entry).length), (entry) => ({ text: waitText(entry).join(', ') || 'no' })],
    ['Blocked', rows.some(isBlocked), (entry) => ({ text: blockText(entry), bad: isBlocked(entry), isFree: true })],
    ['Change', page.session.can_write, (entry) => ({ node: keyButtons(entry) })],
  ].filter(([, isShown]) => isShown);
  const names = ['Policy', 'Left', 'Full again', 'Counted by', ...optional.map(([name]) => name)];
  fill($('key-states'), names, rows.map((entry) => {
    const left = element('span', { class: entry.remaining === 0 ? 'bad' : '' },
      entry.limit === null ? 'not counted now' : `${number(entry.remaining)} of ${number(entry.limit)}`);
    return { name: rowName(entry), cells: [
      { text: entry.policy, head: true },
      { node: entry.limit ? group(meter(entry.remaining / entry.limit), left) : left },
      { text: entry.reset_millis === null ? '–' : entry.reset_millis ? `in ${duration(entry.reset_millis)}` : 'now' },
      { text: placeText(entry) },
      ...optional.map(([, , cell]) => cell(entry)),
    ] };
  }), 'No policies');
  $('block-form').hidden = !page.session.can_write;
  const refundable = rows.filter((entry) => entry.is_refundable);
  $('refund-form').hidden = !page.session.can_write || !refundable.length;
  const isRepeated = (policy) => refundable.filter((entry) => entry.policy === policy).length > 1;
  fillOptions($('refund-policy'), refundable.map((entry) =>
    option(rowName(entry), isRepeated(entry.policy) ? `${entry.policy}, as ${entry.key}` : entry.policy)));
  const policies = ['', ...new Set(rows.map(({ policy }) => policy))];
  fillOptions($('block-policy'), policies.map((name) => option(name, name || 'all policies')));
}

// What may lead to a wrong conclusion from the numbers.
function renderKeyNotes(rows, keyless) {
  const notes = keyless.map(({ policy, reason }) => `${policy} cannot count this key: ${reason}.`);
  if (rows.length && !rows.some((entry) => entry.has_state)) {
    notes.unshift('No policy counts this key now. Check its spelling and its kind.');
  }
  const tiered = [...new Set(rows.filter((entry) => entry.has_tiers).map(({ policy }) => policy))];
  if (tiered.length) notes.push(`Without tiers: what callers of ${tiered.join(', ')} have left depends on their tier.`);
  replaceChanged($('key-notes'), notes.map((note) => element('li', {}, note)));
}

const rowName = ({ policy, key }) => `${policy} ${key}`;

const isBlocked = (entry) => entry.blocked_millis !== null;

const isBanned = ({ penalty }) => penalty !== null && penalty.banned_millis !== null;

const blockText = (entry) => isBlocked(entry)
  ? `${duration(entry.blocked_millis)}${entry.block_reason ? `: ${entry.block_reason}` : ''}` : 'no';

function keyButtons(entry) {
  const { key, policy, block_policy: blocked } = entry;
  const reset = isBanned(entry) ? 'Lift the ban' : 'Reset';
  const buttons = [button(reset, `${reset} of ${key} under ${policy}`, () => resetKey(key, policy, isBanned(entry)))];
  if (isBlocked(entry)) {
    const label = blocked ? 'Unblock' : 'Unblock under all policies';
    const act = () => unblock('key', { key, form: 'counted' }, blocked);
    buttons.push(button(label, `Unblock ${key} under ${blocked ?? 'all policies'}`, act));
  }
  return group(...buttons);
}

async function resetKey(key, policy, isBan) {
  const asked = lookedUp;
  const [title, yes, effect, done] = isBan
    ? [`Lift the ban of ${key}?`, 'Lift the ban', 'Its earlier bans no longer count, and it', 'Lifted the ban']
    : [`Reset ${key}?`, 'Reset', 'It', 'Reset'];
  if (!await confirmed(title, `${effect} gets its full quota under ${policy} again, ${where()}.`, yes)) return;
  await changeKey(asked, 'reset', { key, form: 'counted', policy }, `${done} under ${policy}.`);
}

$('refund-form').addEventListener('submit', async (event) => {
  event.preventDefault();
  const asked = lookedUp;
  const { key, policy } = asked.rows.find((entry) => rowName(entry) === $('refund-policy').value);
  const units = $('refund-units').valueAsNumber;
  const text = `It gets back up to ${count(units, 'unit')} that it has used under ${policy}, ${where()}.`;
  if (!await confirmed(`Refund ${key}?`, text, 'Refund')) return;
  await changeKey(asked, 'refund', { key, form: 'counted', policy, units }, `Refunded under ${policy}.`);
});

// Changes a key, and shows again what was looked up.
async function changeKey(asked, action, body, done) {
  if (!await change('key', () => write(`key/${action}`, body), done)) return;
  if (lookedUp === asked) await lookUp(asked, done);
}

$('block-form').addEventListener('submit', async (event) => {
  event.preventDefault();
  const asked = lookedUp;
  const policy = $('block-policy').value || null;
  const seconds = Number($('block-time').value);
  const reason = $('block-reason').value;
  const bytes = new TextEncoder().encode(reason).length;
  if (bytes > MAX_REASON) {
    return report('key', `The reason is too long: it has ${bytes} bytes, of at most ${MAX_REASON}.`, true);
  }
  const name = policy ?? 'all policies';
  const rows = asked.rows.filter((entry) => policy === null || entry.policy === policy);
  const keys = [...new Set(rows.map(({ key }) => key))];
  const counted = keys.join() === asked.key ? '' : ` It is counted as ${keys.join(', ')}.`;
  const text = `Its requests are denied under ${name} for ${duration(seconds * 1000)}, ${where()}.${counted}`;
  if (!await confirmed(`Block ${nameOf(asked)}?`, text, 'Block')) return;
  const { key, form } = asked;
  await changeKey(asked, 'block', { key, form, policy, seconds, reason }, `Blocked under ${name}.`);
  tell('lists');
});

when('unblocked', (done) => { if (lookedUp) lookUp(lookedUp, done); });
