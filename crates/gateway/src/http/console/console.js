'use strict';
(() => {
  const tail = document.getElementById('tail');
  const live = document.getElementById('live');
  if (!tail || !window.EventSource) return;
  const rowsMax = 100;
  const columns = [['offset', 'n'], ['time', ''], ['kind', ''], ['account', ''], ['change', 'n'], ['held', 'n'],
    ['balance', 'n'], ['about', 'id extra'], ['actor', 'id extra']];
  const source = new EventSource('/console/events?after=' + tail.dataset.after);
  source.addEventListener('open', () => { live.textContent = 'Live: new entries appear here by themselves'; });
  source.addEventListener('error', () => {
    live.textContent = source.readyState === EventSource.CLOSED
      ? 'No longer live: load the page again, and log in if it asks' : 'The connection was lost; trying again';
  });
  source.addEventListener('skipped', event => {
    live.textContent = 'Live: ' + event.data + ' entries came too fast to be shown';
  });
  source.addEventListener('entry', event => {
    const entry = JSON.parse(event.data);
    const row = document.createElement('tr');
    row.className = 'new';
    for (const [name, style] of columns) {
      const cell = document.createElement('td');
      cell.className = style;
      cell.textContent = entry[name];
      row.append(cell);
    }
    tail.prepend(row);
    while (tail.rows.length > rowsMax) tail.deleteRow(-1);
  });
})();
