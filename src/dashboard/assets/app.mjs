// The page of the dashboard. It reads the API beside it, follows the state, and writes text only.

import { $, setText } from './elements.mjs';
import { renderDecisions, renderFigures, renderStore, renderTiers } from './numbers.mjs';
import { renderOverload } from './overload.mjs';
import { page, when } from './page.mjs';
import { renderPolicies } from './policies.mjs';
import { start } from './session.mjs';
import { renderStatus } from './status.mjs';
import './lists.mjs';
import './theme.mjs';

function render() {
  if (!page.session || !page.state || !page.history) return;
  setText($('title'), page.state.title);
  renderStatus();
  renderFigures();
  renderDecisions();
  renderPolicies();
  renderOverload();
  renderTiers();
  renderStore();
}

when('numbers', render);

$('chart-policy').addEventListener('change', render);
$('chart-track').addEventListener('change', render);

for (const details of document.querySelectorAll('details')) details.addEventListener('toggle', render);

new ResizeObserver(() => render()).observe($('decisions-chart'));

start();
