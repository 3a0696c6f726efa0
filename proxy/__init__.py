"""Looptap: a transparent sidecar proxy that rebuilds an agent's loop from its API traffic.

The map of the house (arrows of import point down only)::

    cli › commands › app › server | admin | replay › exchange › core
        › chain | claims | tracker | pricing | outbox | record | dialects | stores
        › tracking › wire › reading › ports › verdict › model › complaint › structs

Read model, verdict, ports, core, exchange, in this order; the rest is detail. Everything that
thinks is plain and synchronous; everything that waits is behind a port. ``exchange`` (live) and
``replay`` (offline) are two shells around the same core.

Where a change goes:

the wire
    ``server`` accepts, ``wire`` reads requests, picks the upstream and passes answers on; ``exchange``
    runs one exchange and shows every await of it
understanding
    ``dialects`` read and write the four formats; ``reading`` reads bodies and streams beside the traffic
the loop
    ``tracker`` drives ``tracking``: who continues what, and which turn is open
judgement
    ``chain`` runs the policies that ``rulebook`` builds; ``claims`` looks at what they want held;
    ``testing`` drives them in tests; ``outgoing`` is a request's body with what of ours was put into it
money
    ``pricing`` prices; ``money`` says who pays, what to hold and what was spent; ``stores`` keeps
    ledgers and thread heads; ``probe`` tries at start whether a cap refuses
several instances
    ``commons`` keeps the shared thread index beside the traffic
the record
    ``outbox`` takes for ``record``, which writes and reads, and for the exporters that ``outlets``
    builds; ``trees`` and ``details`` build what people see,
    ``report`` lies in the terminal; ``exchange_log`` exports, ``catalog`` and ``admin`` serve;
    ``vitals`` has the running process in figures, for metrics; ``circles`` is its garbage collection;
    ``slack`` gives memory back
the terminal
    ``cli`` names the commands and loads those of ``commands``; ``terminal`` draws; ``replay``, ``run`` and
    ``demo`` are what the long ones do; a ``complaint`` ends a command with one line
under all of it
    ``structs`` are frozen dataclasses that cost little to make

Each package's own docstring is the map of its modules.
"""
