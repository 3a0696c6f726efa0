"""Looptap: a transparent sidecar proxy that rebuilds an agent's loop from its API traffic.

The map of the house (arrows of import point down only)::

    cli › app › server | admin | replay › exchange › core
        › reading | tap | chain | tracker | pricing | outbox | record | upstream | dialects | stores
        › ports › verdict › model

Read model, verdict, ports, core, exchange, in this order; the rest is detail. Everything that
thinks is plain and synchronous; everything that waits is behind a port. ``exchange`` (live) and
``replay`` (offline) are two shells around the same core.

Where a change goes:

the wire
    ``server`` accepts, ``incoming`` and ``reader`` read requests, ``routes`` picks the upstream,
    ``exchange`` runs one exchange, ``relay`` passes its answer on, ``upstream`` and ``dial`` are the
    other side, ``wire`` writes heads, ``answers`` speaks for us, ``thinking`` guards the core
understanding
    ``dialects`` read and write the four formats; ``sse``, ``codings``, ``tap`` read replies beside the
    traffic; ``reading`` and ``layout`` read bodies without reading them again; ``identity`` says what
    stays the same of an item
the loop
    ``tracker`` with ``placing``, ``likeness``, ``births``, ``turns`` (rules), ``threads``, ``shelf``,
    ``heads``, ``placement`` (state), ``telling`` (records)
judgement
    ``chain`` runs the policies that ``rulebook`` builds; ``testing`` drives them in tests
money
    ``pricing`` prices; ``bounds``, ``demands``, ``purse``, ``passbook``, ``treasury``, ``ledger``,
    ``windows``, ``orders``, ``keyring``, ``payers``, ``unread``, ``probe`` hold budgets; ``stores`` keeps
    ledgers and heads
the record
    ``outbox`` takes, ``record`` writes and reads, ``redact`` hides, ``trees`` and ``details`` build
    what people see, ``exchange_log`` exports, ``catalog`` and ``admin`` serve
the terminal
    ``cli``, ``options``, ``acting``, ``reporting`` (commands); ``render``, ``listing``, ``timeline``,
    ``screen``, ``showing``, ``lookup``, ``wording``, ``welcome``, ``report`` (what they show); ``run``,
    ``demo``, ``demo_agents``, ``demo_model``
"""
