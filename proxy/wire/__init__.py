"""HTTP/1.1 on both sides, byte for byte.

``incoming`` and ``reader`` take requests, ``routes`` picks the upstream, ``upstream`` and ``dial``
are the other side, ``away`` tells of one that fails, ``relay`` passes the answer on, ``heads``
writes heads, ``answers`` speaks for us, ``guard`` keeps a fault of the thinking part away from the
traffic, ``rounds`` lets chunks pass between what thinks, ``timing`` adds up what is measured.
"""
