"""Looptap: a transparent sidecar proxy that rebuilds an agent's loop from its API traffic.

The map of the house (arrows of import point down only)::

    cli › app › server | admin | replay › exchange › core
        › reading | tap | chain | tracker | pricing | outbox | record | upstream | dialects | stores
        › ports › verdict › model

Read model, verdict, ports, core, exchange, in this order; the rest is detail. Everything that
thinks is plain and synchronous; everything that waits is behind a port. ``exchange`` (live) and
``replay`` (offline) are two shells around the same core.
"""
