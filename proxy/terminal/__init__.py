"""The terminal: what the commands draw.

``render``, ``listing``, ``counters``, ``timeline``, ``report`` draw, on a ``screen`` and in the
``wording`` of all displays, ``refused`` says what was done to a request; ``lookup`` finds what an id
means, ``showing`` and ``welcome`` print it. Nothing in here knows the wire.
"""
