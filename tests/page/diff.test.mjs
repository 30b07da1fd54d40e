import assert from 'node:assert/strict';
import test from 'node:test';

import { diff, excerpt } from '../../src/dashboard/assets/diff.mjs';

const signs = (lines) => lines.map(({ sign, text }) => sign + text);

test('the fewest lines are removed and added', () => {
  assert.deepEqual(signs(diff(['a', 'b', 'c', 'd'], ['a', 'c', 'x', 'd'])), [' a', '-b', ' c', '+x', ' d']);
  assert.deepEqual(signs(diff([], ['a'])), ['+a']);
  assert.deepEqual(signs(diff(['a'], [])), ['-a']);
});

// Rebuilding both texts from the difference shows that no line is lost, whatever the texts are.
test('a difference contains both texts', () => {
  let seed = 7;
  const random = (below) => {
    seed = (seed * 1_103_515_245 + 12_345) % 2_147_483_648;
    return seed % below;
  };
  for (let round = 0; round < 300; round += 1) {
    const [old, next] = [0, 1].map(() => Array.from({ length: random(12) }, () => 'abc'[random(3)]));
    const lines = diff(old, next);
    const without = (sign) => lines.filter((line) => line.sign !== sign).map(({ text }) => text);
    assert.deepEqual(without('+'), old);
    assert.deepEqual(without('-'), next);
  }
});

test('long texts that share nothing are replaced as a whole', () => {
  const [old, next] = ['a', 'b'].map((letter) => Array.from({ length: 2_100 }, (_, line) => letter + line));
  const lines = diff(old, next);
  assert.equal(lines.filter(({ sign }) => sign === '-').length, 2_100);
  assert.equal(lines.filter(({ sign }) => sign === '+').length, 2_100);
});

test('an excerpt has three lines around each change', () => {
  const old = Array.from({ length: 20 }, (_, line) => `line ${line}`);
  const next = old.map((line, index) => index === 10 ? 'new' : line);
  const rows = excerpt(old.join('\n'), next.join('\n')).map(({ text }) => text);
  assert.deepEqual(rows, [
    '…', '  line 7', '  line 8', '  line 9', '- line 10', '+ new', '  line 11', '  line 12', '  line 13', '…',
  ]);
  assert.deepEqual(excerpt('same', 'same'), [{ sign: ' ', text: 'no difference' }]);
});
