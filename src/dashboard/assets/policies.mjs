// The policies, their modes, and how many keys they are enforced for.

import { write } from './api.mjs';
import { $, element, group, option, setText, svg, updateSelect } from './elements.mjs';
import { rates, sumOfLast, sums } from './history.mjs';
import { change, confirmed } from './notices.mjs';
import { page } from './page.mjs';
import { row } from './table.mjs';
import { consistencyText, limitText, number, percent, waitText } from './text.mjs';

const MODES = ['enforce', 'shadow', 'off'];

export function renderPolicies() {
  const table = $('policies');
  const canSetModes = page.session.can_write && page.session.has_modes;
  if (!table.tHead) {
    const names = ['Policy', 'Limit', 'Decisions', 'Denied', 'Last 5 minutes', 'In an outage', 'Mode'];
    table.createTHead().append(row('th', names.map((name, column) => ({ text: name, number: [2, 3].includes(column) }))));
    table.createTBody();
  }
  const body = table.tBodies[0];
  const known = new Map([...body.rows].map((line) => [line.dataset.policy, line]));
  for (const policy of page.state.policies) {
    const line = known.get(policy.name) ?? body.appendChild(policyRow(policy, canSetModes));
    known.delete(policy.name);
    updatePolicy(line, policy, canSetModes);
  }
  for (const line of known.values()) line.remove();
  if (page.session.has_modes) {
    $('layer-mode-label').hidden = $('layer-mode-note').hidden = !canSetModes;
    if (canSetModes) updateSelect($('layer-mode'), page.state.mode);
  }
}

function policyRow(policy, canSetModes) {
  const line = document.createElement('tr');
  line.dataset.policy = policy.name;
  line.append(element('th', { scope: 'row' }, policy.name));
  for (const name of ['Limit', 'Decisions', 'Denied', 'Last 5 minutes', 'In an outage', 'Mode']) {
    const cell = element('td', {});
    cell.dataset.name = name;
    if (name === 'Decisions' || name === 'Denied') cell.className = 'number';
    line.append(cell);
  }
  line.cells[4].append(svg('svg', { class: 'spark', viewBox: '0 0 150 30', preserveAspectRatio: 'none', 'aria-hidden': 'true' }));
  if (canSetModes) {
    const select = modeSelect(`Mode of ${policy.name}`);
    select.addEventListener('change', () => changeMode(policy.name, select));
    line.cells[6].append(group(select, rolloutForm(policy.name)));
  } else {
    line.cells[6].append(element('span', { class: 'tag' }));
  }
  return line;
}

function updatePolicy(line, policy, canSetModes) {
  const [allowed, denied, shadow, unavailable, , leased, kept] = rates(page.history, (series) => series.policy === policy.name);
  const all = allowed + denied + shadow + unavailable;
  const candidate = policy.candidate ? `; candidate: ${limitText(policy.candidate)}` : '';
  setText(line.cells[1], limitText(policy) + consistencyText(policy) + candidate);
  const places = [[leased, 'leases'], [kept, 'kept denials']].filter(([rate]) => rate);
  const decided = [`${number(all)} /s`, ...places.map(([rate, name]) => `${percent(rate / all)} by ${name}`)];
  setText(line.cells[2], [...decided, ...waitText(policy)].join(', '));
  const wouldDeny = shadow ? `, ${percent(shadow / all)} would be` : '';
  setText(line.cells[3], all ? percent(denied / all) + wouldDeny : '–');
  sparkline(line.cells[4].firstChild, policy.name);
  setText(line.cells[5], { allow: 'allow', local: 'count locally', deny: 'deny (503)' }[policy.on_outage]);
  if (policy.mode === null) return setText(line.cells[6].firstChild, 'always');
  if (canSetModes) {
    updateSelect(line.querySelector('select'), policy.mode);
    updateRollout(line.querySelector('.rollout'), policy.rollout);
  } else {
    setText(line.cells[6].firstChild, policy.mode + (policy.rollout < 100 ? `, ${policy.rollout} % of keys` : ''));
    line.cells[6].firstChild.dataset.mode = policy.mode;
  }
}

function sparkline(target, policy) {
  const lists = sums(page.history.tracks[0], (series) => series.policy === policy);
  const bin = 5;
  const bins = Math.floor(page.history.tracks[0].capacity / bin);
  const binned = lists.map((list) => Array.from({ length: bins }, (_, index) => {
    const end = list.length - (bins - 1 - index) * bin;
    return end <= 0 ? 0 : sumOfLast(list.slice(Math.max(0, end - bin), end), bin);
  }));
  const total = binned[0].map((_, index) => binned[0][index] + binned[1][index] + binned[2][index] + binned[3][index]);
  const denied = binned[1].map((count, index) => count + binned[3][index]);
  const shadow = binned[2].map((count, index) => count + denied[index]);
  const top = Math.max(1, ...total);
  const path = (values) => {
    const points = values.map((value, index) => `${((index + 0.5) * 150 / bins).toFixed(1)} ${(29 - 28 * value / top).toFixed(1)}`);
    return `M0 29L${points.join('L')}L150 29Z`;
  };
  // Each in front of the one before.
  [['allowed', total], ['shadow', shadow], ['denied', denied]].forEach(([kind, values], index) => {
    if (!target.children[index]) target.append(svg('path', { 'data-kind': kind }));
    target.children[index].setAttribute('d', path(values));
  });
}

function modeSelect(label) {
  const select = element('select', { 'aria-label': label });
  select.append(...MODES.map((mode) => option(mode, mode)));
  return select;
}

async function changeMode(policy, select) {
  const mode = select.value;
  const name = policy ?? 'all policies';
  const effect = {
    off: 'Nothing is counted or denied until it is changed back, in this instance.',
    shadow: 'Requests are counted, and none is denied, in this instance.',
    enforce: 'Requests over the limit are denied, in this instance.',
  }[mode];
  select.dataset.busy = 'yes';
  if (await confirmed(`Set ${name} to ${mode}?`, effect, `Set to ${mode}`)) {
    await change('policies', () => write('mode', policy === null ? { mode } : { mode, policy }), `Set ${name} to ${mode}.`);
  }
  delete select.dataset.busy;
  if (page.state) updateSelect(select, policy === null ? page.state.mode : page.state.policies.find(({ name }) => name === policy)?.mode);
}

// A percentage that is being written has a button, and stays until it is set or given up.
function rolloutForm(policy) {
  const label = `Percent of keys for which ${policy} is enforced`;
  const input = element('input', { type: 'number', min: 0, max: 100, step: 'any', required: '', 'aria-label': label });
  const set = element('button', { class: 'small', 'aria-label': `Set the percent of keys for ${policy}` }, 'Set');
  set.hidden = true;
  input.addEventListener('input', () => { set.hidden = false; });
  const form = element('form', { class: 'rollout' });
  form.append('for ', input, ' % of keys ', set);
  form.addEventListener('submit', async (event) => {
    event.preventDefault();
    await changeRollout(policy, input.valueAsNumber);
    if (document.activeElement === set) input.focus();
    set.hidden = true;
    const latest = page.state?.policies.find(({ name }) => name === policy);
    if (latest) updateRollout(form, latest.rollout);
  });
  return form;
}

function updateRollout(form, percentage) {
  const [input, set] = form.children;
  if (set.hidden && input.valueAsNumber !== percentage) input.value = percentage;
}

async function changeRollout(policy, percentage) {
  const effect = 'Requests of other keys are counted, and none is denied, in this instance.';
  if (!await confirmed(`Enforce ${policy} for ${percentage} % of keys?`, effect, `Set to ${percentage} %`)) return;
  await change('policies', () => write('rollout', { policy, percent: percentage }), `Set ${policy} to ${percentage} % of keys.`);
}

$('layer-mode').append(...MODES.map((mode) => option(mode, mode)));

$('layer-mode').addEventListener('change', () => changeMode(null, $('layer-mode')));
