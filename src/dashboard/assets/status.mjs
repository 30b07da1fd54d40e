// The line that says how the limiter does.

import { $, element, replaceChanged, setText } from './elements.mjs';
import { sumOfLast, sums } from './history.mjs';
import { readAloud } from './notices.mjs';
import { page, when } from './page.mjs';
import { count, duration, number, percent, time } from './text.mjs';

export function renderStatus() {
  if (!page.state) return;
  const { health, mode, servers } = page.state;
  const modes = (wanted) => page.state.policies.filter((policy) => policy.mode === wanted).map((policy) => policy.name);
  let [level, text] = ['good', 'Limiting normally'];
  const details = [];
  if (health.mode === 'degraded') {
    const isDown = health.outages.some((outage) => outage.stuck_slots === null);
    [level, text] = isDown ? ['bad', 'Redis is down: policies apply their choice for outages']
      : ['bad', 'No node decides on some slots of Redis: policies apply their choice for outages'];
    for (const outage of health.outages) {
      const place = outage.stuck_slots ? count(outage.stuck_slots, 'hash slot') : outage.server ?? 'Redis';
      details.push(`${place} for ${duration(page.state.time - outage.since)}: ${outage.cause}.`);
    }
    details.push(`This instance grants ${percent(health.share)} of each quota that it counts locally.`);
  } else if (!health.is_well) {
    [level, text] = ['soft', `${percent(health.affected_share)} of the decisions are made without Redis`];
    if (health.cause) details.push(`${health.cause}.`);
  }
  details.push(deniedText());
  if (mode === 'off') [level, text] = ['bad', 'Limits are off: nothing is counted or denied'];
  else if (mode === 'shadow') [level, text] = ['soft', 'In shadow: requests are counted, and none is denied'];
  else {
    if (modes('off').length) details.push(`Off: ${modes('off').join(', ')}.`);
    if (modes('shadow').length) details.push(`In shadow: ${modes('shadow').join(', ')}.`);
  }
  if (health.is_well) {
    const store = servers.length ? `Redis ${servers.map((server) => server.address ?? '').join(', ')}` : 'this process';
    const instances = health.instances ? `, by ${count(health.instances, 'instance')}` : '';
    details.push(`Counted in ${store}${instances}.`);
  }
  if ($('connection').dataset.state === 'lost') {
    [level, text] = ['soft', `Not current: the connection is lost, the last numbers are from ${time(page.state.time, true)}`];
  }
  if (health.pending_merges) details.push(`${count(health.pending_merges, 'key')} not merged into Redis yet.`);
  if ($('status-text').textContent !== text) readAloud($('announcer'), text);
  setText($('status-text'), text);
  document.title = level === 'good' ? `${page.state.title}: rate limits` : `${text} (${page.state.title})`;
  setText($('status-detail'), details.join(' '));
  $('status').dataset.state = level;
  const warnings = page.state.warnings.map((warning) =>
    `${warning.code}${warning.policy ? `, ${warning.policy}` : ''}: ${warning.detail}; ${warning.remedy}`);
  replaceChanged($('warnings'), warnings.map((warning) => element('li', {}, warning)));
}

// Which policies deny, those that deny most first.
function deniedText() {
  const minute = (policy) => sums(page.history.tracks[0], (series) => series.policy === policy).map((list) => sumOfLast(list, 60));
  const denied = page.state.policies.map(({ name }) => ({ name, count: minute(name)[1] })).filter(({ count }) => count > 0);
  if (!denied.length) return 'Nothing was denied in the last minute.';
  denied.sort((left, right) => right.count - left.count);
  const most = denied.slice(0, 3).map(({ name, count }) => `${number(count)} by ${name}`).join(', ');
  const rest = denied.slice(3).reduce((sum, { count: more }) => sum + more, 0);
  return `Denied in the last minute: ${most}${rest ? `, ${number(rest)} by others` : ''}.`;
}

when('connection', renderStatus);
