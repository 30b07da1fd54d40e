// Blocked keys.

import { read, write } from './api.mjs';
import { $, button, setText } from './elements.mjs';
import { change, confirmed } from './notices.mjs';
import { page, serverTime, tell } from './page.mjs';
import { fill } from './table.mjs';
import { duration, nameOf, number } from './text.mjs';

// Ends a block, from the panel of the key or from the list.
export async function unblock(panel, asked, policy) {
  const name = policy ?? 'all policies';
  if (!await confirmed(`Unblock ${nameOf(asked)}?`, `Its block under ${name} ends now.`, 'Unblock')) return;
  const done = `Unblocked ${nameOf(asked)} under ${name}.`;
  if (!await change(panel, () => write('key/unblock', { ...asked, policy }), done)) return;
  tell('unblocked', panel === 'key' ? done : '');
  tell('lists');
}

export async function refreshBlocks(owner) {
  if (!owner.can_write) return;
  const list = await read('blocks');
  if (page.session !== owner) return;
  const more = list.count > list.blocks.length ? `: the ${number(list.blocks.length)} of ${number(list.count)} that end first` : '';
  setText($('blocks-title'), `Blocked keys${more}${list.store_error ? ', as known before the outage' : ''}`);
  fill($('blocks'), ['Key', 'Policy', 'Ends in', 'Reason', 'Change'], list.blocks.map((block) => {
    const policy = block.policy ?? 'all policies';
    const act = () => unblock('blocks', { key: block.key, form: 'counted' }, block.policy);
    return { name: `${block.key} ${policy}`, cells: [
      { text: block.key, key: true },
      { text: policy },
      { text: duration(Math.max(0, block.until - serverTime())) },
      { text: block.reason || '–', isFree: true },
      { node: button('Unblock', `Unblock ${block.key} under ${policy}`, act) },
    ] };
  }), 'No key is blocked');
}
