// The requests in flight in this instance, and how many of each class were shed.

import { write } from './api.mjs';
import { $, option, setText, updateSelect } from './elements.mjs';
import { change, confirmed } from './notices.mjs';
import { page } from './page.mjs';
import { fill } from './table.mjs';
import { count, number } from './text.mjs';

const EFFECTS = {
  off: 'Requests are neither counted nor shed until it is changed back, in this instance.',
  shadow: 'Requests are counted, and none is shed, in this instance.',
  enforce: 'Requests that the service cannot serve in time are shed, in this instance.',
};

let before = null; // the state of a second ago, to count what was shed since

export function renderOverload() {
  const { overload, time } = page.state;
  $('overload-panel').hidden = !overload;
  if (!overload) return;
  const { classes, in_flight: inFlight, is_overloaded: isOverloaded, limit, mode } = overload;
  const load = { off: 'Off: nothing is counted', shadow: 'In shadow: none is shed' }[mode] ?? (isOverloaded ? 'Overloaded' : 'Not overloaded');
  setText($('overload-note'), `${load}. ${count(inFlight, 'request')} in flight, up to ${number(limit)} of the lowest class.`);
  const rates = rateByClass(classes, time);
  const would = mode === 'shadow' ? 'Would be shed' : 'Shed';
  fill($('overload-classes'), ['Class', `${would} a second`, `${would} in total`], classes.map(({ name, shed }) => ({
    name,
    cells: [{ text: name, head: true }, { text: `${number(rates.get(name) ?? 0)} /s`, number: true }, { text: number(shed), number: true }],
  })));
  const canSet = page.session.can_write;
  $('overload-mode-label').hidden = !canSet;
  if (!canSet) return;
  if (!$('overload-mode').options.length) $('overload-mode').append(...Object.keys(EFFECTS).reverse().map((it) => option(it, it)));
  updateSelect($('overload-mode'), mode);
}

// The page is also drawn again without new numbers: these keep their rates.
function rateByClass(classes, time) {
  const counts = new Map(classes.map(({ name, shed }) => [name, shed]));
  if (before?.time !== time) {
    const span = (time - (before?.time ?? time)) / 1000;
    const rate = ([name, shed]) => [name, span > 0 ? Math.max(0, shed - (before.counts.get(name) ?? shed)) / span : 0];
    before = { time, counts, rates: new Map([...counts].map(rate)) };
  }
  return before.rates;
}

$('overload-mode').addEventListener('change', async () => {
  const select = $('overload-mode');
  const mode = select.value;
  select.dataset.busy = 'yes';
  if (await confirmed(`Set overload to ${mode}?`, EFFECTS[mode], `Set to ${mode}`)) {
    await change('overload', () => write('overload/mode', { mode }), `Set overload to ${mode}.`);
  }
  delete select.dataset.busy;
  if (page.state?.overload) updateSelect(select, page.state.overload.mode);
});
