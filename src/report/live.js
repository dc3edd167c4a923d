
// Fetches the page again when the run has news, and shows its new <main> in place of the old one.
const state = document.querySelector('#state');
let words = 'not connected', news = Date.now(), busy = false, missed = false;

function show(text) {
  words = text ?? words;
  const seconds = Math.round((Date.now() - news) / 1000);
  state.textContent = words === 'live' ? `live, last change ${seconds} s ago` : words;
}

async function refresh(always) {
  if (busy || (document.hidden && always !== true)) { missed = true; return; }
  [busy, missed] = [true, false];
  try {
    const answer = await fetch(location.href);
    const page = new DOMParser().parseFromString(await answer.text(), 'text/html').querySelector('main');
    if (answer.ok && page) {
      const open = [...document.querySelectorAll('details[open] > summary')].map(it => it.textContent);
      const places = [...document.querySelectorAll('.scroll')].map(it => it.scrollLeft);
      page.querySelectorAll('summary').forEach(it => { it.parentElement.open = open.includes(it.textContent); });
      document.querySelector('main').replaceWith(page);
      page.querySelectorAll('.scroll').forEach((it, at) => { it.scrollLeft = places[at] ?? 0; });
      news = Date.now();
      show();
    }
  } catch { /* The next event tries again. */ }
  busy = false;
  if (missed) refresh();
}

const events = new EventSource('events' + location.search);
events.onopen = () => show('live');
events.onerror = () => show('not connected, trying again');
events.onmessage = refresh;
events.addEventListener('end', async () => {
  while (busy) await new Promise(done => setTimeout(done, 50));
  await refresh(true);
  events.close();
  show('no longer served; this is the last state');
});
document.addEventListener('visibilitychange', () => { if (missed && !document.hidden) refresh(); });
setInterval(show, 1000);

for (const button of document.querySelectorAll('nav button')) {
  button.hidden = !location.search.includes('token=');
  button.onclick = async () => {
    if (!confirm(button.value)) return;
    const answer = await fetch(button.name + location.search, { method: 'POST' }).catch(error => error);
    alert(answer.ok ? `${button.textContent}: ${await answer.text()}` : 'The run did not take it: ' + (answer.statusText || answer));
  };
}
