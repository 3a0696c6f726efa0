"""The straight line without its awaits: opened → fed → closed.

``Core`` strings together what thinks: dialects, reading, tracker, chain, tap, prices. It owns no
socket, clock, file or random source, so the live shell (``exchange``) and the offline one
(``replay``) run exactly this code. Nothing here may fail or delay an exchange: the shells call it
through ``guard``, which counts and reports an internal fault and lets the traffic pass.
"""
