// Versions of the rules, and their editor.

import { failure, read, write } from './api.mjs';
import { excerpt } from './diff.mjs';
import { $, button, element, group, setText } from './elements.mjs';
import { change, confirmed, readAloud, report } from './notices.mjs';
import { page, tell } from './page.mjs';
import { fill } from './table.mjs';
import { moment } from './text.mjs';

export async function refreshRules(owner) {
  if (!owner.has_rules) return;
  const latest = await read('rules');
  if (page.session !== owner) return;
  page.versions = latest;
  renderVersions();
  $('rules-editor').hidden = !canReplaceRules() || !page.edited;
  if (canReplaceRules()) await refreshEditor(owner);
}

const canReplaceRules = () => page.session.can_write && page.versions.can_push;

// Loads the current rules into the editor, unless they are in it, or the operator has changed its text.
async function refreshEditor(owner) {
  if (page.edited?.replaced !== page.versions.latest && !isEdited()) {
    const replaced = page.versions.latest;
    const loaded = await read(`rules/${page.versions.present}`);
    if (page.session === owner && !isEdited()) load(loaded, replaced);
  }
  renderEditor();
}

// `replaced` is the latest version that is stored; it is not current if it was refused here.
function load({ number: version, text, format }, replaced) {
  $('rules-text').value = text;
  $('rules-format').value = format;
  // The text as the field returns it, with its line ends.
  page.edited = { number: version, replaced, text: $('rules-text').value, format };
}

const isEdited = () => page.edited && ($('rules-text').value !== page.edited.text || $('rules-format').value !== page.edited.format);

// Warns if other rules are current than those with which the operator began.
function renderEditor() {
  $('rules-editor').hidden = !page.edited;
  const isOutdated = page.edited && page.versions && page.edited.replaced !== page.versions.latest;
  $('rules-outdated').hidden = !isOutdated;
  if (!isOutdated) return;
  const text = `You began with version ${page.edited.number}. Since then, version ${page.versions.latest} was stored. `
    + 'Compare it with your text, and take over what it changed.';
  if ($('rules-outdated-text').textContent !== text) readAloud($('rules-outdated-text'), text);
}

// Keeps the text of the operator, who has seen what is current now.
$('rules-keep').addEventListener('click', () => {
  Object.assign(page.edited, { number: page.versions.present, replaced: page.versions.latest });
  renderEditor();
  $('rules-text').focus();
});

$('rules-discard').addEventListener('click', async () => {
  try {
    const replaced = page.versions.latest;
    load(await read(`rules/${page.versions.present}`), replaced);
    renderEditor();
    $('rules-text').focus();
  } catch (error) {
    report('rules', failure(error), true);
  }
});

function renderVersions() {
  const present = page.versions.versions.find(({ number }) => number === page.versions.present);
  const by = present.author ? ` by ${present.author}` : '';
  const file = page.versions.can_push ? '' : ' The rules come from a file: to change them, edit it.';
  setText($('rules-note'), `Version ${present.number} is current, since ${moment(present.time)}${by}.${file}`);
  const faults = [];
  if (page.versions.last_error) faults.push(`The latest rules were refused, and those above stay:\n${page.versions.last_error}`);
  if (page.versions.source_error) faults.push(`Older page.versions cannot be read: ${page.versions.source_error}.`);
  $('rules-error').hidden = !faults.length;
  setText($('rules-error'), faults.join('\n'));
  fill($('versions'), ['Version', 'When', 'By', 'Comment', ''], page.versions.versions.map((version) => {
    const isPresent = version.number === page.versions.present;
    const buttons = isPresent ? [document.createTextNode('current')]
      : [button('Compare', `Compare version ${version.number} with the current rules`, () => compare(version.number))];
    if (!isPresent && canReplaceRules()) {
      buttons.push(button('Roll back', `Roll back to version ${version.number}`, () => rollBack(version.number)));
    }
    return { name: String(version.number), cells: [
      { text: String(version.number), head: true },
      { text: moment(version.time) },
      { text: version.author ?? '–', isFree: true },
      { text: version.comment ?? '–', isFree: true },
      { node: group(...buttons) },
    ] };
  }));
}

async function compare(version) {
  try {
    const [old, present] = await Promise.all([read(`rules/${version}`), read(`rules/${page.versions.present}`)]);
    showDiff(`Version ${version} and version ${page.versions.present}, current`, old.text, present.text);
  } catch (error) {
    report('rules', failure(error), true);
  }
}

async function rollBack(version) {
  if (!await confirmed(`Roll back to version ${version}?`, 'Its rules are applied as a new version.', 'Roll back')) return;
  if (await change('rules', () => write('rules/roll-back', { version }), `Rolled back to version ${version}.`)) tell('lists');
}

$('rules-compare').addEventListener('click', async () => {
  try {
    const present = await read(`rules/${page.versions.present}`);
    showDiff(`Version ${present.number}, current, and your text`, present.text, $('rules-text').value);
  } catch (error) {
    report('rules', failure(error), true);
  }
});

$('rules-form').addEventListener('submit', async (event) => {
  event.preventDefault();
  const [text, format, replacing] = [$('rules-text').value, $('rules-format').value, page.edited.replaced];
  const effect = `They replace version ${replacing}. If they have a fault, nothing changes.`;
  if (!await confirmed('Apply these rules?', effect, 'Apply')) return;
  const comment = $('rules-comment').value || null;
  const result = $('rules-result');
  readAloud(result, '');
  try {
    const { number: version } = await read('rules/push', { text, format, replacing, comment });
    report('rules', `Version ${version} is current.`);
    page.edited = { number: version, replaced: version, text, format };
    $('rules-comment').value = '';
    $('rules-editor').open = false;
  } catch (error) {
    if (page.session) readAloud(result, error.message);
  }
  tell('lists');
});

// Shows the lines that differ.
function showDiff(title, old, next) {
  setText($('diff-title'), title);
  $('diff').replaceChildren(...excerpt(old, next).map(({ sign, text }) => {
    const line = element('tr', { 'data-sign': sign });
    line.append(element('td', {}, text));
    return line;
  }));
  $('diff-box').hidden = false;
}
