"""The console: pages that show what is in the store, and change it, for browsers.

Pages are made on the server, and every page works without a script. What they show and change goes through the routes
of the JSON API, as the caller whose session it is: rights and limits have one home. A change is a form that is posted
with a proof of its session, from the console's own origin; a page that shows something claims nothing.

A request, in the order in which things happen:

    part.py          which requests are the console's; finds the page; takes forms once
    entrance.py      sessions: a token or a link gives one; cookies, proofs, hosts and origins
    logging_in.py    the pages before a session
    visit.py         one visit: who came, what was asked, ways to answer; forms
    render.py        templates, addresses, times as the browser wants them
    wording.py       numbers, times, sizes and bodies as text
    assets.py        style sheet, script and htmx, with their digests
    live.py          the stream that tells pages that something changed

The pages:

    overview.py      what needs attention, and totals
    queues.py        queues: the list, one queue, publish, pause, redrive, purge
    messages.py      one message, its download, and finding one by number
    journals.py      journals: the list, one journal, its messages, searching, appending, trimming
    running.py       consumers and graphs: state, lag, members; pause, resume, reset
    schedules.py     schedules: when they tick, how far they are; pause, resume, run now, delete
    storing.py       the store as a whole, ledgers and pins, keys
    preferences.py   time zone and colours of a browser
    curves.py        the curves of a page, from the series that the server keeps
    drawing.py       curves and graphs as SVG

`templates/` has a template for each page, and `static/` what pages load; `static/vendored.json` names what others
wrote.
"""

from detent.server.console.part import PATH as PATH
from detent.server.console.part import ConsolePart as ConsolePart
