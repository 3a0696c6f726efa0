"""Reading beside the traffic: bodies, streams and what stays the same of an item.

``library`` and ``layout`` read requests that grew without reading them again; ``sse``, ``codings``
and ``tap`` read replies from a copy; ``insertions`` puts text between a body's own bytes; ``identity``
says when two items are one; ``redact`` hides credentials in whatever is kept.
"""
