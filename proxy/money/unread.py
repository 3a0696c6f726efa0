"""Which requests that no dialect reads may cost money: everything posted, but for what is known free.

Under a cap on spend these must not pass unseen; embeddings, pictures, batches and whatever a provider
adds tomorrow are billed. A new free path is a line.
"""

import re

_FREE = re.compile(
    r"/count_tokens/?$|:countTokens$|/input_tokens/?$"  # counting
    r"|/(?:files|uploads)(?:/|$)|/moderations/?$"
    r"|/(?:responses|batches|jobs|runs)/[^/]+/cancel/?$|/cancel/?$|:cancel$"
    r"|/oauth/|/oauth2/|/token/?$"
    r"|^/?api/"  # clients' own bookkeeping: events, settings, profiles
    r"|/(?:traces|metrics|logs|telemetry)(?:/|$)"
)


def is_billable(method: str, path: str) -> bool:
    """Whether a request may be billed, as far as its head tells."""
    return method == "POST" and _FREE.search(path) is None
