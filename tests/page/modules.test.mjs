import assert from 'node:assert/strict';
import { readdirSync, readFileSync } from 'node:fs';
import test from 'node:test';

const FOLDER = new URL('../../src/dashboard/assets/', import.meta.url);
const names = readdirSync(FOLDER).filter((name) => name.endsWith('.mjs'));
const imports = new Map(names.map((name) => {
  const text = readFileSync(new URL(name, FOLDER), 'utf8');
  return [name, [...text.matchAll(/^(?:import|\}) .*'\.\/(.+)';$/gm)].map(([, imported]) => imported)];
}));

test('the page reaches every module', () => {
  const reached = new Set(['app.mjs']);
  for (const name of reached) for (const imported of imports.get(name)) reached.add(imported);
  assert.deepEqual([...reached].sort(), names.sort());
});

test('modules do not import each other in a circle', () => {
  const done = new Set();
  const visit = (name, way) => {
    assert.ok(!way.includes(name), `${[...way, name].join(' -> ')}`);
    if (done.has(name)) return;
    for (const imported of imports.get(name)) visit(imported, [...way, name]);
    done.add(name);
  };
  visit('app.mjs', []);
});
