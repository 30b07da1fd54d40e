// The keys that are denied most.

import { read } from './api.mjs';
import { $, button, setText } from './elements.mjs';
import { lookUp } from './keys.mjs';
import { page } from './page.mjs';
import { fill } from './table.mjs';
import { number, time } from './text.mjs';

export async function refreshTopKeys(owner) {
  if (!owner.has_top_keys) return setText($('top-note'), 'Not recorded: build the limiter with top keys.');
  const list = await read('top-keys');
  if (page.session === owner) renderTopKeys(list);
}

function renderTopKeys(list) {
  const lines = list.policies.flatMap(({ policy, total, keys }) => keys.map((key) => ({ policy, total, ...key })));
  lines.sort((left, right) => right.count - left.count);
  const about = list.is_plain ? '' : ' Keys are shown as hashes.';
  setText($('top-note'), `Denied requests since ${time(list.since, true)}.${about}`);
  fill($('top-keys'), ['Key', 'Policy', 'Denied', ...(list.is_plain ? [''] : [])], lines.slice(0, 10).map((line) => {
    const share = line.error ? `${number(line.count - line.error)} to ${number(line.count)}` : number(line.count);
    const cells = [{ text: line.key, key: true }, { text: line.policy }, { text: share, number: true }];
    if (list.is_plain) {
      cells.push({ node: button('Look up', `Look up ${line.key}`, () => lookUp({ key: line.key, form: 'counted' })) });
    }
    return { name: `${line.key} ${line.policy}`, cells };
  }), 'Nothing was denied');
}
