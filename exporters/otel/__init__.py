"""Traces, logs and metrics over OTLP: one trace per turn. The map of this package:

``wanted`` is what the settings say, ``opening`` what becomes of it. ``exporter`` takes records and hands
out what is ready; ``turns`` puts records together into spans, with ``steps`` for what lies
below a turn and ``state`` for what they remember,
``draft`` for a span in the making, ``ids`` for its ids, ``names`` for its attributes, ``events`` for
findings and interventions, ``content`` for what may be shown of the traffic. ``sending`` is the bounded
way out to a ``collector``, which may take a part only. ``link`` says where that is and who we are, from
the settings and the ``OTEL_*`` variables; ``over_http`` (with ``answers``, which keeps what comes back
short) and ``over_grpc`` are its two drivers, loaded only where chosen. ``metrics`` takes all figures as
they stand, with the conventions' own of ``calls``.

The invariant: a collector that is dead, slow or refusing costs counters, never traffic or memory.
"""
