"""Money and limits: from claims to settlements.

``keyring`` and ``payers`` say who pays; ``bounds`` and ``demands`` how much a request could cost;
``purse`` reserves and settles one exchange, ``passbook`` keeps what is said about it, ``standing``
adds up what policies see of the budgets, ``tally`` what metrics tell of them; ``treasury`` opens the
ledger that the settings name, ``orders`` takes stop and topup; ``forecast`` says how long budgets
last; ``unread`` bounds what nobody can read; ``deadlines`` tell when time is up, ``landing`` gives a turn
its last step. ``door`` refuses again what was refused before: the same bytes (``storms``), or all that comes
to a counter (``pressure``); ``lobby`` is where requests wait for an operator, ``audience`` one request's
dealings with that operator; ``deferred`` finds what is held for a background reply when it is fetched.
The ledgers themselves lie in ``proxy.stores``.
"""
