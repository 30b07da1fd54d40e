// Tables whose rows keep their place when the numbers change.

import { element, replaceChanged } from './elements.mjs';

export function row(kind, cells, names = []) {
  const line = document.createElement('tr');
  cells.forEach((cell, column) => {
    const node = document.createElement(cell.head || kind === 'th' ? 'th' : 'td');
    if (node.localName === 'th') node.scope = kind === 'th' ? 'col' : 'row';
    if (cell.number) node.classList.add('number');
    if (cell.key) node.classList.add('key');
    if (cell.isFree) node.classList.add('free');
    if (cell.bad) node.classList.add('bad');
    if (kind !== 'th' && names[column]) node.dataset.name = names[column];
    node.append(cell.node ?? cell.text);
    line.append(node);
  });
  return line;
}

// Shows rows, each with a name of its own. What is the same stays: a selection, the focus, the place of a screen reader.
// Controls with equal labels have to do the same.
export function fill(table, names, rows, empty) {
  if (!rows.length && !empty) return keepFocus(table, () => table.replaceChildren());
  const isNumber = (column) => rows[0]?.cells[column]?.number;
  const head = element('thead', {});
  head.append(row('th', names.map((text, column) => ({ text, number: isNumber(column) }))));
  const lines = rows.map(({ name, cells }) => {
    const line = row('td', cells, names);
    line.dataset.row = name;
    return line;
  });
  if (!rows.length) {
    lines.push(element('tr', { 'data-row': '' }));
    lines[0].append(element('td', { class: 'note', colspan: names.length }, empty));
  }
  if (!table.tHead) table.append(head, element('tbody', {}));
  else if (!table.tHead.isEqualNode(head)) table.tHead.replaceWith(head);
  keepFocus(table, () => fillBody(table.tBodies[0], lines));
}

function fillBody(body, lines) {
  const known = new Map([...body.rows].map((line) => [line.dataset.row, line]));
  const shown = lines.map((line) => {
    const old = known.get(line.dataset.row);
    known.delete(line.dataset.row);
    if (!old) return line;
    replaceChanged(old, [...line.cells]);
    return old;
  });
  for (const line of known.values()) line.remove();
  shown.forEach((line, index) => {
    if (body.rows[index] !== line) body.insertBefore(line, body.rows[index] ?? null);
  });
}

// Runs an update of a table. A control that was replaced passes its focus on, and one that is gone to the heading.
function keepFocus(table, update) {
  const focused = document.activeElement;
  const cell = table.contains(focused) && focused.closest('td, th');
  if (!cell) return update();
  const [name, column] = [cell.parentElement.dataset.row, cell.cellIndex];
  update();
  if (document.activeElement === focused) return;
  const line = [...table.rows].find((it) => it.dataset.row === name);
  const heading = table.closest('section').querySelector('h2');
  heading.tabIndex = -1;
  const next = focused.isConnected ? focused : line?.cells[column]?.querySelector('button') ?? heading;
  next.focus({ preventScroll: true });
}
