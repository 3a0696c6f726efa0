"""The commands, a module for each or for those that belong together. ``cli`` loads what is asked for.

``check`` (and `schema`), ``serve``, ``demo``, ``run``, ``lists`` (`sessions`, `turns`), ``show``,
``tail``, ``report``, ``replay``, ``acting`` (`budgets`, `keys`, `stop`, `topup`). They share
``options`` (options, output, how a command fails); ``settled`` is the configuration, ``recorded`` the
record that those options mean, ``live`` runs what waits. A command reads options, calls what does the
work, and puts out what it says; drawing is ``terminal``'s.
"""
