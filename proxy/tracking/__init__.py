"""The loop's state: what the tracker knows of sessions, threads, turns and steps.

``placing`` finds the thread a request continues, with ``likeness`` where prefixes fail, ``twins``
where equal runs share them and ``retelling`` where only prose tells of it; ``births`` begins threads,
``turns`` says which turn it is, ``course`` takes turns and steps through their lives; ``threads`` and
``shelf`` hold the state, in less room by ``packing`` while it rests, ``heads`` writes it down, ``lookups``
names it and ``merging`` joins what several instances did; ``placement`` is the answer and ``telling`` its
records, with ``asked`` for what a request wants and ``around`` for what stands around its messages;
``newest`` keeps replies that later requests may quote; ``nudges`` knows which text of ours stands where in a
thread, ``repairs`` the reasoning that its replies had, ``landing`` which turn was given its last step and
``waits`` how long requests waited for an operator. ``proxy.tracker`` drives them.
"""
